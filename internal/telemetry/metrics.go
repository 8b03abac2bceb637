package telemetry

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/observe"
)

// Metrics are the counters of one server: an [episode.Observer] of its driver. They are
// safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	requests     prometheus.Gauge
	requestBytes *prometheus.CounterVec

	episodes      *prometheus.CounterVec
	redispatches  prometheus.Counter
	waiting       prometheus.Gauge
	waits         prometheus.Histogram
	episodesTook  *prometheus.HistogramVec
	closesFailed  *prometheus.CounterVec
	callsTook     *prometheus.HistogramVec
	callsInFlight *prometheus.GaugeVec
	resends       *prometheus.CounterVec
	callBytes     *prometheus.CounterVec
	calls         sync.Map // the counters of each call, by what it is
}

// callCounters are the counters of one call, which are looked up once.
type callCounters struct {
	inFlight       prometheus.Gauge
	took           map[string]prometheus.Observer // by outcome
	resends        prometheus.Counter
	sent, received prometheus.Counter
}

// Durations are from milliseconds to the six hours that an episode may take. Who scrapes
// native histograms gets ten buckets between any two of these.
var buckets = []float64{
	.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 2 * 60, 5 * 60, 10 * 60, 30 * 60, 3600, 2 * 3600, 4 * 3600, 6 * 3600,
}

// New makes counters that stand at zero, beside those of the Go runtime and of the
// process.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	m.requests = m.gauge("turn_requests_in_flight", "Requests to /run under way, those that wait for admission or for their next attempt included.")
	m.requestBytes = m.counter("turn_request_bytes_total", "Bytes of the bodies of /run, by direction (received, sent).", "direction")
	m.episodes = m.counter("turn_episodes_total", "Attempts that ended, by outcome (result, masked, failure) and, for failures, by stage and kind.", "outcome", "stage", "kind")
	m.redispatches = m.counter("turn_redispatches_total", "Attempts that followed a failed one of the same request.").WithLabelValues()
	m.waiting = m.gauge("turn_episodes_waiting", "Attempts that wait for admission.")
	m.waits = m.histogram("turn_admission_wait_seconds", "How long attempts waited for admission that had to.").WithLabelValues().(prometheus.Histogram)
	m.episodesTook = m.histogram("turn_episode_duration_seconds", "How long attempts took, their wait for admission and their closes included, by outcome.", "outcome")
	m.closesFailed = m.counter("turn_closes_failed_total", "Closes that failed for good, by server: the session may still be open there.", "server")
	m.callsTook = m.histogram("turn_call_duration_seconds", "How long calls took, all that was sent again included, by call and outcome (success, refused, broken).", "call", "outcome")
	m.callsInFlight = m.gauges("turn_calls_in_flight", "Calls under way, by call.", "call")
	m.resends = m.counter("turn_resends_total", "How often calls were sent again, by call.", "call")
	m.callBytes = m.counter("turn_call_bytes_total", "Bytes of the bodies of calls, by call and direction (sent, received).", "call", "direction")
	return m
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	return m.gauges(name, help).WithLabelValues()
}

func (m *Metrics) histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160}, labels)
	m.registry.MustRegister(h)
	return h
}

// Handler answers a scrape.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Began counts a request as in flight until the returned function is called.
func (m *Metrics) Began() (ended func()) {
	m.requests.Inc()
	return m.requests.Dec
}

// Received counts the bytes of a request's body, Sent those of its reply's.
func (m *Metrics) Received(bytes int) { m.requestBytes.WithLabelValues("received").Add(float64(bytes)) }

// Sent is beside [Metrics.Received].
func (m *Metrics) Sent(bytes int) { m.requestBytes.WithLabelValues("sent").Add(float64(bytes)) }

// Redispatched counts an attempt that follows a failed one.
func (m *Metrics) Redispatched() { m.redispatches.Inc() }

// Journal has a scrape say how many sessions a driver's journal has noted, and how many
// of them nobody is about to close.
func (m *Metrics) Journal(noted func() (open, left int)) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "turn_journal_sessions", Help: "Sessions that the journal has as open."}, func() float64 {
			open, _ := noted()
			return float64(open)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "turn_journal_sessions_left", Help: "Those of them that were left open, and are closed when their server lets them be."}, func() float64 {
			_, left := noted()
			return float64(left)
		}),
	)
}

// Attempt counts an attempt, by what becomes of it.
func (m *Metrics) Attempt(ctx context.Context, _ *episode.Request) (context.Context, func(episode.Reply)) {
	began := time.Now()
	return ctx, func(reply episode.Reply) {
		outcome, stage, kind := outcomeOf(reply)
		m.episodes.WithLabelValues(outcome, stage, kind).Inc()
		m.episodesTook.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
	}
}

// outcomeOf is what became of an attempt, in few words whatever servers send.
func outcomeOf(reply episode.Reply) (outcome, stage, kind string) {
	switch f := reply.Failure; {
	case f != nil:
		return "failure", string(f.Stage), kindLabel(f.Kind)
	case reply.Result.Masked:
		return "masked", "", ""
	}
	return "result", "", ""
}

func kindLabel(kind failures.Kind) string {
	if kind == "" || kind.Registered() {
		return string(kind)
	}
	return "other"
}

// Waits counts a wait for admission.
func (m *Metrics) Waits() (over func()) {
	began := time.Now()
	m.waiting.Inc()
	return func() {
		m.waiting.Dec()
		m.waits.Observe(time.Since(began).Seconds())
	}
}

// Call counts a call, by what comes of it.
func (m *Metrics) Call(ctx context.Context, call observe.Call) (context.Context, func(observe.Called)) {
	began, c := time.Now(), m.countersOf(call)
	c.inFlight.Inc()
	return ctx, func(called observe.Called) {
		c.inFlight.Dec()
		c.took[outcomeOfCall(called)].Observe(time.Since(began).Seconds())
		c.resends.Add(float64(max(called.Sends-1, 0)))
		c.sent.Add(float64(called.Sent))
		c.received.Add(float64(called.Received))
	}
}

func (m *Metrics) countersOf(call observe.Call) *callCounters {
	if known, ok := m.calls.Load(call.What); ok {
		return known.(*callCounters)
	}
	path := strings.TrimPrefix(call.What, "POST ")
	c := &callCounters{
		inFlight: m.callsInFlight.WithLabelValues(path),
		took:     map[string]prometheus.Observer{},
		resends:  m.resends.WithLabelValues(path),
		sent:     m.callBytes.WithLabelValues(path, "sent"),
		received: m.callBytes.WithLabelValues(path, "received"),
	}
	for _, outcome := range []string{success, refused, broken} {
		c.took[outcome] = m.callsTook.WithLabelValues(path, outcome)
	}
	m.calls.Store(call.What, c)
	return c
}

// What a call may come to.
const (
	success = "success"
	refused = "refused"
	broken  = "broken" // no reply, or none that counts
)

func outcomeOfCall(called observe.Called) string {
	switch {
	case called.Err != nil:
		return broken
	case called.Failed():
		return refused
	}
	return success
}

// CloseFailed counts a close that failed.
func (m *Metrics) CloseFailed(server episode.Server) {
	m.closesFailed.WithLabelValues(string(server)).Inc()
}
