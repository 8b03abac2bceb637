package envserver_test

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"example.com/turn/internal/scripted"
	"example.com/turn/internal/telemetry"
	"example.com/turn/retry"
)

var plainRequest = request(`{"responses_create_params":{"input":"hi"}}`)

// scrape reads the counters of turn: "name label,label" to value.
func (h *house) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	response, err := h.client.Get(h.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	values := map[string]float64{}
	for name, family := range families {
		if !strings.HasPrefix(name, "turn_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			values[strings.TrimSpace(name+" "+strings.Join(labels, ","))] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return values
}

// Every outcome is counted, by stage and kind; what a server makes up as a kind is
// "other", so that no label grows without bound.
func TestOutcomesAreCounted(t *testing.T) {
	h := newHouse(t, func(s *settings) {
		s.server.Policy = retry.Policy{MaxAttempts: 2, Backoff: 1}
		s.server.Metrics = telemetry.New()
		s.driver.CloseFailed = s.server.Metrics.CloseFailed
	})
	verdict := func(text string) scripted.Action {
		return scripted.Action{JSON: []byte(`{"responses_create_params":{},"response":{},` + text + `}`)}
	}
	for _, script := range []scripted.Script{
		{},
		{scripted.Verify: {verdict(`"reward":0,"mask_sample":true`)}},
		{scripted.Seed: {{Status: 422}}},
		{scripted.Responses: {{Status: 503}, {Default: true}}},
		{scripted.Seed: {{Status: 400, JSON: []byte(`{"failure_kind":"made_up_kind"}`)}}},
		{scripted.CloseSession: {{Status: 409}}},
		{scripted.AgentClose: {{Status: 409}}},
	} {
		h.Play(script)
		h.run(t, plainRequest)
	}
	want := map[string]float64{
		"turn_episodes_total kind=,outcome=result,stage=":                           3,
		"turn_episodes_total kind=,outcome=masked,stage=":                           1,
		"turn_episodes_total kind=,outcome=failure,stage=seed":                      1,
		"turn_episodes_total kind=other,outcome=failure,stage=seed":                 1,
		"turn_episodes_total kind=agent_request_failed,outcome=failure,stage=agent": 1,
		"turn_episodes_total kind=,outcome=failure,stage=cleanup":                   1,
		"turn_closes_failed_total server=agent":                                     1,
		"turn_closes_failed_total server=resources":                                 1,
		"turn_requests_in_flight":                                                   0,
	}
	if diff := cmp.Diff(want, h.scrape(t)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestRequestsInFlightAreCounted(t *testing.T) {
	h := newHouse(t, nil)
	gate := make(chan struct{})
	h.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	var replies []<-chan reply
	for range 3 {
		replies = append(replies, h.running(within(t), plainRequest))
	}
	if _, err := h.Wait(within(t), scripted.Responses, 3); err != nil {
		t.Fatal(err)
	}
	if got := h.scrape(t)["turn_requests_in_flight"]; got != 3 {
		t.Errorf("%v in flight, want 3", got)
	}
	close(gate)
	for _, replied := range replies {
		receive(t, replied)
	}
	if got := h.scrape(t)["turn_requests_in_flight"]; got != 0 {
		t.Errorf("%v in flight after the replies, want 0", got)
	}
}
