package envserver_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/envserver"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
)

func TestRoutes(t *testing.T) {
	h := newHouse(t, nil)
	const ok = `{"status":"ok"}`
	for _, test := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/", 200, ok},
		{"GET", "/health", 200, ok},
		{"GET", "/healthz", 200, ok},
		{"GET", "/livez", 200, ok},
		{"GET", "/readyz", 200, ok},
		{"HEAD", "/readyz", 200, ""},
		{"GET", "/readyz?verbose=1", 200, ok},
		{"POST", "/readyz", 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/", 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/metrics", 405, `{"detail":"Method Not Allowed"}`},
		{"GET", "/run", 405, `{"detail":"Method Not Allowed"}`},
		{"PUT", "/run", 405, `{"detail":"Method Not Allowed"}`},
		{"GET", "/aggregate_metrics", 405, `{"detail":"Method Not Allowed"}`},
		{"GET", "/nothing", 404, `{"detail":"Not Found"}`},
		{"POST", "/nothing", 404, `{"detail":"Not Found"}`},
		{"POST", "/run/", 404, `{"detail":"Not Found"}`},
		{"POST", "/v1/run", 404, `{"detail":"Not Found"}`},
		{"POST", "/seed_session", 404, `{"detail":"Not Found"}`},
	} {
		got, err := h.call(within(t), test.method, test.path, "application/json", plain)
		if err != nil {
			t.Fatal(err)
		}
		if got.Status != test.status || got.Body != test.body || got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: status %d, %s; want %d, %s", test.method, test.path, got.Status, got.Body, test.status, test.body)
		}
		if allow := got.Header.Get("Allow"); (allow != "") != (test.status == 405) {
			t.Errorf("%s %s: Allow %q", test.method, test.path, allow)
		}
	}
	if calls := h.Routes(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
}

func TestAggregateMetricsIsPassedThrough(t *testing.T) {
	h := newHouse(t, nil)
	const unread = `{"verify_responses": [NaN, 1.0, "<&>`
	for _, test := range []struct {
		name        string
		action      scripted.Action
		status      int
		contentType string
		body        string // "": only a detail
	}{
		{"success", scripted.Action{Raw: new(`{"mean/reward": 1.0 , "n":18446744073709551616}`)}, 200, "application/json", `{"mean/reward": 1.0 , "n":18446744073709551616}`},
		{"another success", scripted.Action{Status: 201, Raw: new("metrics"), ContentType: "text/plain; charset=utf-8"}, 201, "text/plain; charset=utf-8", "metrics"},
		{"the last success", scripted.Action{Status: 299, Raw: new("{}")}, 299, "application/json", "{}"},
		{"right behind the successes", scripted.Action{Status: 300, Raw: new("{}")}, 502, "application/json", `{"detail":"resources server weather refused POST /aggregate_metrics with 300 Multiple Choices: Multiple Choices"}`},
		{"the first refusal", scripted.Action{Status: 400, Raw: new("{}")}, 400, "application/json", "{}"},
		{"the last refusal", scripted.Action{Status: 499, Raw: new("{}")}, 499, "application/json", "{}"},
		{"422", scripted.Action{Status: 422, Raw: new(`{"detail":[{"loc":["body"]}]}`)}, 422, "application/json", `{"detail":[{"loc":["body"]}]}`},
		{"404", scripted.Action{Status: 404, Raw: new("nothing here"), ContentType: "text/plain"}, 404, "text/plain", "nothing here"},
		{"429", scripted.Action{Status: 429, Raw: new(`{"detail":"slow down"}`)}, 429, "application/json", `{"detail":"slow down"}`},
		{"500", scripted.Action{Status: 500, Raw: new(`{"detail":"no metrics"}`)}, 502, "application/json", `{"detail":"resources server weather refused POST /aggregate_metrics with 500 Internal Server Error: no metrics"}`},
		{"503", scripted.Action{Status: 503, Raw: new(``)}, 502, "application/json", `{"detail":"resources server weather refused POST /aggregate_metrics with 503 Service Unavailable: Service Unavailable"}`},
		{"a redirect elsewhere", scripted.Action{Status: 302, Raw: new(``), Headers: [][2]string{{"Location", "http://127.0.0.1:1/?token=x"}}}, 502, "application/json", `{"detail":"resources server weather refused POST /aggregate_metrics with 302 Found: Found"}`},
		{"cut off", scripted.Action{Drop: scripted.MidBody}, 502, "application/json", ""},
		{"garbage", scripted.Action{Drop: scripted.Garbage}, 502, "application/json", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(scripted.Script{scripted.Metrics: {test.action}})
			got, err := h.call(within(t), http.MethodPost, "/aggregate_metrics", "application/json", unread)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != test.status || got.Header.Get("Content-Type") != test.contentType || test.body != "" && got.Body != test.body {
				t.Errorf("status %d, type %q, %s; want %d, %q, %s", got.Status, got.Header.Get("Content-Type"), got.Body, test.status, test.contentType, test.body)
			}
			if test.body == "" {
				wantDetail(t, got, "resources server weather")
			}
			for _, call := range h.Calls() {
				if call.Path != "/aggregate_metrics" || string(call.Body) != unread || call.Header.Get("Content-Type") != "application/json" {
					t.Errorf("forwarded to %s as %s: %s", call.Path, call.Header.Get("Content-Type"), call.Body)
				}
			}
		})
	}
}

// What the resources server answers is passed through whole, up to the limit on
// replies, in the encoding that it came in, and described in no way that it did not
// describe itself in.
func TestAggregateMetricsAreNeitherCutNorDecodedNorDescribed(t *testing.T) {
	const limit = 4 << 20
	long := `{"detail":"` + strings.Repeat("x", 3<<20) + `"}`
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(zip, long)
	_ = zip.Close()
	for _, test := range []struct {
		name   string
		status int
		header http.Header
		body   string
		want   int
		words  string // of the detail; "": it is passed through
	}{
		{"a long success", 200, http.Header{"Content-Type": {"application/json"}}, long, 200, ""},
		{"a long refusal", 422, http.Header{"Content-Type": {"application/json"}}, long, 422, ""},
		{"an encoded success", 200, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, zipped.String(), 200, ""},
		{"an encoded refusal", 413, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, zipped.String(), 413, ""},
		{"a refusal encoded twice", 400, http.Header{"Content-Type": {"text/plain"}, "Content-Encoding": {"br, gzip"}}, "\x1f\x8b", 400, ""},
		{"a refusal without a type", 404, http.Header{"Content-Type": nil}, "<html>nothing here</html>", 404, ""},
		{"an empty refusal", 409, http.Header{"Content-Type": nil}, "", 409, ""},
		{"a success of the limit", 200, http.Header{"Content-Type": {"text/plain"}}, strings.Repeat("x", limit), 200, ""},
		{"a success over the limit", 200, nil, strings.Repeat("x", limit+1), 502, "larger than the limit of 4194304 bytes"},
		{"a refusal over the limit", 422, nil, strings.Repeat("x", limit+1), 502, "larger than the limit of 4194304 bytes"},
		{"a failure that says much", 500, nil, strings.Repeat("é", 1<<20), 502, "500 Internal Server Error: éééé"},
		{"a failure that is encoded", 503, http.Header{"Content-Encoding": {"gzip"}}, zipped.String(), 502, "503 Service Unavailable: Service Unavailable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			resources := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				maps.Copy(w.Header(), test.header)
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			t.Cleanup(resources.Close)
			h := newHouse(t, func(s *settings) {
				s.driver.Resources.URL, s.driver.Resources.MaxReplyBytes = resources.URL, limit
			})
			h.client.Transport.(*http.Transport).DisableCompression = true
			got, err := h.call(within(t), http.MethodPost, "/aggregate_metrics", "application/json", "{}")
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != test.want {
				t.Fatalf("status %d, want %d: %.300s", got.Status, test.want, got.Body)
			}
			if test.words != "" {
				wantDetail(t, got, test.words)
				if n := utf8.RuneCountInString(got.Body); n > failures.MaxReason+100 {
					t.Errorf("the detail has %d characters", n)
				}
				return
			}
			if got.Body != test.body {
				t.Errorf("%d bytes came through, want the %d as they were", len(got.Body), len(test.body))
			}
			for _, name := range []string{"Content-Type", "Content-Encoding"} {
				if diff := cmp.Diff(test.header[name], got.Header[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

func wantDetail(t *testing.T, got reply, words string) {
	t.Helper()
	var body struct{ Detail string }
	if err := json.Unmarshal([]byte(got.Body), &body); err != nil || !strings.Contains(body.Detail, words) {
		t.Errorf("status %d: %s, want a detail with %q", got.Status, got.Body, words)
	}
}

func TestAggregateMetricsWithoutAServerIs502(t *testing.T) {
	h := newHouse(t, func(s *settings) { s.driver.Resources.URL = deadURL(t) })
	got, err := h.call(within(t), http.MethodPost, "/aggregate_metrics", "application/json", `{}`)
	if err != nil || got.Status != http.StatusBadGateway {
		t.Fatalf("%+v, %v", got, err)
	}
	wantDetail(t, got, "connection refused")
}

// deadURL is the URL of a port on which nobody listens.
func deadURL(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return "http://" + listener.Addr().String()
}

// A request that ends before its length is not answered as if it had been run,
// even when the caller still listens.
func TestBrokenRequestIs400(t *testing.T) {
	h := newHouse(t, nil)
	for name, text := range map[string]string{
		"cut off":              "POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"a chunk that is none": "POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
		"metrics in no chunk":  "POST /aggregate_metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
		"metrics cut off":      "POST /aggregate_metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
	} {
		if got, err := h.raw(t, text); err == nil && got.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d", name, got.StatusCode)
		}
	}
	h.ends(t)
	if calls := h.Routes(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
}

// A request that says it is too large is refused before a byte of it is read.
func TestTooLargeRequestIs413(t *testing.T) {
	h := newHouse(t, nil)
	for _, path := range []string{"/run", "/aggregate_metrics"} {
		got, err := h.raw(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", path, envserver.MaxRequestBytes+1))
		if err != nil || got.StatusCode != http.StatusRequestEntityTooLarge || !got.Close {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	h.ends(t)
	if calls := h.Routes(); len(calls) > 0 {
		t.Errorf("calls were made: %v", calls)
	}
}

// raw sends a text, says that nothing more will come, and reads the reply. The
// error is that of a connection which ends without one.
func (h *house) raw(t *testing.T, text string) (*http.Response, error) {
	t.Helper()
	return h.rawUntil(t, text, func() {})
}

// rawUntil is raw with a caller that says all it has to say only after until.
func (h *house) rawUntil(t *testing.T, text string, until func()) (*http.Response, error) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	deadline, _ := within(t).Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	until()
	_ = conn.(*net.TCPConn).CloseWrite()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_ = response.Body.Close()
	}
	return response, err
}

// What a failure carries beyond 0.7.0's fields is printed for later main only.
func TestCompatDecidesTheFieldsOfAFailure(t *testing.T) {
	const partial = `{"output":[],"n":1.0}`
	verifyFails := scripted.Script{
		scripted.Responses:  {{Raw: new(partial)}},
		scripted.AgentClose: {{Raw: new(`{"agent_session_id":"{{id}}","agent_observations":{"n":1.0},"agent_trajectory":[1.0]}`)}},
		scripted.Verify:     {{Status: 422, JSON: json.RawMessage(`{"detail":"words","failure_kind":"judge_failed"}`)}},
	}
	agentFails := scripted.Script{
		scripted.Responses:  {{Status: 500, JSON: json.RawMessage(`{"detail":"words"}`)}},
		scripted.AgentClose: {{Status: 409, JSON: json.RawMessage(`{"detail":"not yours"}`)}},
	}
	verifyFailed := `{"failure_reason":"resources server weather refused POST /verify with 422 Unprocessable Entity: words","terminal":true,"partial_response":` + partial + `,"failure_kind":"judge_failed","stage":"verification"`
	agentFailed := `{"failure_reason":"agent server simple_agent refused POST /v1/responses with 500 Internal Server Error: words","terminal":false,"partial_response":null,"failure_kind":"agent_run_error","stage":"agent"`
	for _, test := range []struct {
		name   string
		compat envserver.Compat
		script scripted.Script
		want   string
	}{
		{"by default", "", verifyFails, verifyFailed + `}`},
		{"0.7", envserver.Compat07, verifyFails, verifyFailed + `}`},
		{"0.7, close failed too", envserver.Compat07, agentFails, agentFailed + `}`},
		{"main", envserver.CompatMain, verifyFails, verifyFailed + `,"ng_agent_observations":{"n":1.0},"ng_trajectory":[1.0]}`},
		{"main, close failed too", envserver.CompatMain, agentFails, agentFailed + `,"ng_agent_observations":null,"cleanup_error":"agent server simple_agent refused POST /v1/agent_sessions/close with 409 Conflict: not yours"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := newHouse(t, func(s *settings) { s.server.Compat = test.compat })
			h.Play(test.script)
			want := `{"episode_id":` + episodeID + `,"task_id":` + taskID + `,"result":null,"failure":` + test.want + `}`
			if got := h.run(t, plain); got.Status != 200 || got.Body != want {
				t.Errorf("status %d\n got %s\nwant %s", got.Status, got.Body, want)
			}
			if test.compat != envserver.CompatMain && len(test.script[scripted.Verify]) == 0 && !strings.Contains(h.log.String(), "not yours") {
				t.Errorf("the cleanup error is not logged: %s", h.log)
			}
		})
	}
}

// A reply carries the caller's ids whatever attempt it is of; what the servers are
// told is the attempt's own.
func TestRedispatchWithinOneRequest(t *testing.T) {
	h := newHouse(t, func(s *settings) { s.server.Policy.MaxAttempts, s.server.Policy.Backoff = 3, 1 })
	h.Play(scripted.Script{scripted.Seed: {{Status: 503}, {Drop: scripted.Garbage}, {Drop: scripted.Garbage}, {Drop: scripted.Garbage}, {Drop: scripted.Garbage}, {Default: true}}})
	body := strings.Replace(plain, `"attempt":0`, `"attempt":4`, 1)
	got := open(t, h.run(t, body))
	if want := `{"rollout_id":"3-0","attempt":4}`; got.Failure != nil || string(got.EpisodeID) != want {
		t.Errorf("episode id %s, failure %+v", got.EpisodeID, got.Failure)
	}
	var attempts []string
	ids := map[string]bool{}
	for _, call := range h.Calls() {
		var body struct {
			ID      string             `json:"resources_session_id"`
			Episode protocol.EpisodeID `json:"episode_id"`
		}
		_ = json.Unmarshal(call.Body, &body)
		if call.Route == scripted.Seed || call.Route == scripted.CloseSession {
			attempts = append(attempts, fmt.Sprint(call.Route, " ", body.Episode.Attempt))
			ids[body.ID] = true
		}
	}
	want := []string{"seed 4", "close_session 4", "seed 5", "seed 5", "seed 5", "seed 5", "close_session 5", "seed 6", "close_session 6"}
	if diff := cmp.Diff(want, attempts); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if len(ids) != 3 {
		t.Errorf("%d session ids for 3 attempts", len(ids))
	}
}

// No cookie, MCP header or token is in the log at any level, nor in an answer,
// even when a refusing server says it.
func TestSecretsStayInside(t *testing.T) {
	secrets := []string{"res-c00kie-value", "agent-c00kie-value", "Bearer mcp-t0ken-value", "mcp-t0ken-value", "brought-back-value", "server-t0ken-value"}
	h := newHouse(t, func(s *settings) {
		s.driver.ToolTransports = []protocol.ToolTransport{protocol.DirectHTTP, protocol.MCP}
		s.driver.Resources.Token, s.driver.Agent.Token = "server-t0ken-value", "server-t0ken-value"
	})
	known := "res-c00kie-value, agent-c00kie-value, Bearer mcp-t0ken-value, Bearer server-t0ken-value"
	everything := json.RawMessage(`{"detail":"I know ` + known + `"}`)
	later := json.RawMessage(`{"detail":"I know ` + known + ` and brought-back-value"}`)
	seed := `{"resources_session_id":"{{id}}","resources_tools":{"server_name":"weather-mcp","headers":{"Authorization":"Bearer mcp-t0ken-value"}}}`
	script := func(more scripted.Script) scripted.Script {
		s := scripted.Script{
			scripted.Seed:       {{Raw: &seed, SetCookie: []string{"res=res-c00kie-value"}}},
			scripted.AgentSeed:  {{SetCookie: []string{`agent="agent-c00kie-value"`}}},
			scripted.AgentClose: {{Raw: new(`{"agent_session_id":"{{id}}","resources_cookies":{"shard":"brought-back-value"}}`)}},
		}
		for route, actions := range more {
			s[route] = actions
		}
		return s
	}
	for name, more := range map[string]scripted.Script{
		"success":                     nil,
		"verify refuses":              {scripted.Verify: {{Status: 500, JSON: later}}},
		"seed refuses":                {scripted.Seed: {{Status: 401, JSON: json.RawMessage(`{"detail":"Bearer server-t0ken-value"}`)}}},
		"agent refuses":               {scripted.Responses: {{Status: 422, JSON: everything}}},
		"closes refuse":               {scripted.AgentClose: {{Status: 503, JSON: everything}}, scripted.CloseSession: {{Status: 503, JSON: everything}}},
		"only the last close refuses": {scripted.CloseSession: {{Status: 503, JSON: later}}},
		"connections break":           {scripted.Verify: {{Drop: scripted.Garbage}}, scripted.CloseSession: {{Drop: scripted.MidBody}}},
		"contract broken":             {scripted.AgentClose: {{Raw: new(`{"agent_session_id":"res-c00kie-value"}`)}}},
	} {
		h.Play(script(more))
		got := h.run(t, plain)
		answer := got.Body
		if e := open(t, got); e.Failure != nil {
			answer = e.Failure.Reason
		}
		for _, secret := range secrets {
			if strings.Contains(answer, secret) {
				t.Errorf("%s: %q is in the answer %s", name, secret, answer)
			}
			if strings.Contains(h.log.String(), secret) {
				t.Errorf("%s: %q is in the log %s", name, secret, h.log)
			}
		}
	}
	if !strings.Contains(h.log.String(), `"level":"debug"`) {
		t.Error("the log has no line of level debug: the test shows nothing")
	}
}
