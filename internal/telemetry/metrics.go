package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/turn/episode"
	"example.com/turn/failures"
)

// Metrics are the counters of one server. They are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	episodes *prometheus.CounterVec
	inFlight prometheus.Gauge
	closes   *prometheus.CounterVec
}

// New makes counters that stand at zero, beside those of the Go runtime and of the
// process.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		episodes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "turn_episodes_total",
			Help: "Attempts that ended, by outcome (result, masked, failure) and, for failures, by stage and kind.",
		}, []string{"outcome", "stage", "kind"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "turn_requests_in_flight",
			Help: "Requests to /run under way, those that wait for admission or for their next attempt included.",
		}),
		closes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "turn_closes_failed_total",
			Help: "Closes that failed for good, by server: the session may still be open there.",
		}, []string{"server"}),
	}
	m.registry.MustRegister(m.episodes, m.inFlight, m.closes, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler answers a scrape.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Began counts a request as in flight until the returned function is called.
func (m *Metrics) Began() (ended func()) {
	m.inFlight.Inc()
	return m.inFlight.Dec
}

// Attempted counts an attempt.
func (m *Metrics) Attempted(reply *episode.Reply) {
	switch f := reply.Failure; {
	case f != nil:
		m.episodes.WithLabelValues("failure", string(f.Stage), kindLabel(f.Kind)).Inc()
	case reply.Result.Masked:
		m.episodes.WithLabelValues("masked", "", "").Inc()
	default:
		m.episodes.WithLabelValues("result", "", "").Inc()
	}
}

func kindLabel(kind failures.Kind) string {
	if kind == "" || kind.Registered() {
		return string(kind)
	}
	return "other"
}

// CloseFailed counts a close that failed.
func (m *Metrics) CloseFailed(server episode.Server) {
	m.closes.WithLabelValues(string(server)).Inc()
}
