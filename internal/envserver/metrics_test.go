package envserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"example.com/turn/internal/scripted"
	"example.com/turn/retry"
)

var plainRequest = request(`{"responses_create_params":{"input":"hi"}}`)

// scrape reads the metrics of turn, as Prometheus does: "name label,label" to value. Of a
// histogram it is how many observations there are.
func (h *house) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	response, err := h.client.Get(h.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatal(err)
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
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			values[strings.TrimSpace(name+" "+strings.Join(labels, ","))] = value
		}
	}
	return values
}

// Every outcome is counted, by stage and kind; what a server makes up as a kind is
// "other", so that no label grows without bound. So is every call, by what came of it.
func TestOutcomesAreCounted(t *testing.T) {
	h := newHouse(t, func(s *settings) { s.server.Policy = retry.Policy{MaxAttempts: 2, Backoff: 1} })
	verdict := func(text string) scripted.Action {
		return scripted.Action{JSON: []byte(`{"responses_create_params":{},"response":{},` + text + `}`)}
	}
	for _, script := range []scripted.Script{
		{},
		{scripted.Verify: {verdict(`"reward":0,"mask_sample":true`)}},
		{scripted.Seed: {{Status: 422}}},
		{scripted.Responses: {{Status: 503}, {Default: true}}}, // tried again
		{scripted.Seed: {{Status: 400, JSON: []byte(`{"failure_kind":"made_up_kind"}`)}}},
		{scripted.CloseSession: {{Status: 409}}},
		{scripted.AgentClose: {{Status: 409}}},
		{scripted.Verify: {{Drop: scripted.AfterRead}, {Default: true}}}, // sent again
		{scripted.Responses: {{Drop: scripted.AfterRead}, {Drop: scripted.AfterRead}}},
	} {
		h.Play(script)
		h.run(t, plainRequest)
	}
	got := h.scrape(t)
	for name := range got {
		if strings.Contains(name, "bytes") {
			delete(got, name) // a test of their own
		}
	}
	want := map[string]float64{
		"turn_requests_in_flight":                                                   0,
		"turn_episodes_waiting":                                                     0,
		"turn_admission_wait_seconds":                                               0,
		"turn_redispatches_total":                                                   2,
		"turn_episodes_total kind=,outcome=result,stage=":                           4,
		"turn_episodes_total kind=,outcome=masked,stage=":                           1,
		"turn_episodes_total kind=,outcome=failure,stage=seed":                      1,
		"turn_episodes_total kind=other,outcome=failure,stage=seed":                 1,
		"turn_episodes_total kind=agent_request_failed,outcome=failure,stage=agent": 1,
		"turn_episodes_total kind=,outcome=failure,stage=cleanup":                   1,
		"turn_episodes_total kind=transport_peer_drop,outcome=failure,stage=agent":  2,
		"turn_episode_duration_seconds outcome=result":                              4,
		"turn_episode_duration_seconds outcome=masked":                              1,
		"turn_episode_duration_seconds outcome=failure":                             6,
		"turn_closes_failed_total server=agent":                                     1,
		"turn_closes_failed_total server=resources":                                 1,
		"turn_call_duration_seconds call=/seed_session,outcome=success":             9,
		"turn_call_duration_seconds call=/seed_session,outcome=refused":             2,
		"turn_call_duration_seconds call=/v1/agent_sessions,outcome=success":        9,
		"turn_call_duration_seconds call=/v1/responses,outcome=success":             6,
		"turn_call_duration_seconds call=/v1/responses,outcome=refused":             1,
		"turn_call_duration_seconds call=/v1/responses,outcome=broken":              2,
		"turn_call_duration_seconds call=/v1/agent_sessions/close,outcome=success":  8,
		"turn_call_duration_seconds call=/v1/agent_sessions/close,outcome=refused":  1,
		"turn_call_duration_seconds call=/verify,outcome=success":                   5,
		"turn_call_duration_seconds call=/close_session,outcome=success":            10,
		"turn_call_duration_seconds call=/close_session,outcome=refused":            1,
		"turn_call_duration_seconds call=/seed_session,outcome=broken":              0,
		"turn_call_duration_seconds call=/v1/agent_sessions,outcome=refused":        0,
		"turn_call_duration_seconds call=/v1/agent_sessions,outcome=broken":         0,
		"turn_call_duration_seconds call=/v1/agent_sessions/close,outcome=broken":   0,
		"turn_call_duration_seconds call=/verify,outcome=refused":                   0,
		"turn_call_duration_seconds call=/verify,outcome=broken":                    0,
		"turn_call_duration_seconds call=/close_session,outcome=broken":             0,
		"turn_resends_total call=/seed_session":                                     0,
		"turn_resends_total call=/v1/agent_sessions":                                0,
		"turn_resends_total call=/v1/responses":                                     0,
		"turn_resends_total call=/v1/agent_sessions/close":                          0,
		"turn_resends_total call=/verify":                                           1,
		"turn_resends_total call=/close_session":                                    0,
		"turn_calls_in_flight call=/seed_session":                                   0,
		"turn_calls_in_flight call=/v1/agent_sessions":                              0,
		"turn_calls_in_flight call=/v1/responses":                                   0,
		"turn_calls_in_flight call=/v1/agent_sessions/close":                        0,
		"turn_calls_in_flight call=/verify":                                         0,
		"turn_calls_in_flight call=/close_session":                                  0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// Bytes are those of bodies, as often as they were sent.
func TestBytesAreCounted(t *testing.T) {
	h := newHouse(t, nil)
	h.Play(scripted.Script{scripted.Verify: {{Drop: scripted.AfterRead}, {Default: true}}})
	reply := h.run(t, plainRequest)
	want := map[string]float64{
		"turn_request_bytes_total direction=received": float64(len(plainRequest)),
		"turn_request_bytes_total direction=sent":     float64(len(reply.Body)),
	}
	for _, call := range h.Calls() {
		path := strings.TrimPrefix(call.Path, "/ng-rollout/3-0")
		want["turn_call_bytes_total call="+path+",direction=sent"] += float64(len(call.Body))
		if call.Reply == "200" {
			want["turn_call_bytes_total call="+path+",direction=received"] += float64(len(call.Answer))
		}
	}
	got := h.scrape(t)
	for name := range got {
		if !strings.Contains(name, "bytes") {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bytes (-want +got):\n%s", diff)
	}
}

// Who waits for admission is counted while it waits, and how long it took.
func TestWaitsForAdmissionAreCounted(t *testing.T) {
	h := newHouse(t, func(s *settings) { s.driver.Concurrency, s.driver.QueueTimeout = 1, time.Hour })
	gate := make(chan struct{})
	h.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	first := h.running(within(t), plainRequest)
	if _, err := h.Wait(within(t), scripted.Responses, 1); err != nil {
		t.Fatal(err)
	}
	second := h.running(within(t), plainRequest)
	for ctx := within(t); h.scrape(t)["turn_episodes_waiting"] != 1; {
		if ctx.Err() != nil {
			t.Fatal("nobody is counted as waiting")
		}
	}
	close(gate)
	receive(t, first)
	receive(t, second)
	got := h.scrape(t)
	if got["turn_episodes_waiting"] != 0 || got["turn_admission_wait_seconds"] != 1 {
		t.Errorf("%v wait, and %v have waited; want 0 and 1", got["turn_episodes_waiting"], got["turn_admission_wait_seconds"])
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
