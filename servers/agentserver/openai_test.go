package agentserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/requests"
)

// An endpoint is a model's server on a real socket. It keeps what it was asked.
type endpoint struct {
	url   string
	mu    sync.Mutex
	asked []asked
}

type asked struct{ Path, Body string }

func newEndpoint(t *testing.T, serve http.HandlerFunc) *endpoint {
	t.Helper()
	e := &endpoint{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.asked = append(e.asked, asked{r.URL.RequestURI(), string(body)})
		e.mu.Unlock()
		serve(w, r)
	}))
	t.Cleanup(server.Close)
	e.url = server.URL
	return e
}

// seen is what it was asked so far.
func (e *endpoint) seen() []asked {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked)
}

func (e *endpoint) paths() []string {
	var paths []string
	for _, call := range e.seen() {
		paths = append(paths, call.Path)
	}
	return paths
}

// model is a model at the endpoint.
func (e *endpoint) model(t *testing.T, config agentserver.OpenAIConfig) *agentserver.OpenAI {
	t.Helper()
	config.URL = e.url + "/v1"
	model, err := agentserver.NewOpenAI(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	return model
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// chatOnly answers one completion, and has no Responses API.
func chatOnly(status int, completion string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/chat/completions") {
			answering(http.StatusOK, completion)(w, r)
			return
		}
		answering(status, `{"detail":"Not Found"}`)(w, r)
	}
}

const (
	hi = `{"input":[{"role":"user","content":"hi"}]}`
	// What a decoder would change: numbers, escapes, order, white space.
	odd = ` {"z":9007199254740993, "input": [{"role":"user","content":"<&>` + "\u2028" + `\u2028\/\ud800"}], "a":1.0e0 } `
	// A completion that says "hello" and nothing else.
	hello = `{"id":"c1","created":7,"model":"m","choices":[{"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}`
)

func TestTheResponsesAPIGetsTheParamsAsTheyCame(t *testing.T) {
	const answer = ` {"output":[], "x":"<&>\u2028", "n":9007199254740993 } `
	var header http.Header
	e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		answering(http.StatusOK, answer)(w, r)
	})
	got, err := e.model(t, agentserver.OpenAIConfig{Key: "sk-123456"}).Respond(t.Context(), []byte(odd))
	if err != nil || string(got) != answer {
		t.Errorf("got %s, %v, want %s", got, err, answer)
	}
	if diff := cmp.Diff([]asked{{"/v1/responses", odd}}, e.seen()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{"Authorization": "Bearer sk-123456", "Content-Type": "application/json"} {
		if got := header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestOnlyTheModelOfTheParamsIsReplaced(t *testing.T) {
	for _, test := range []struct{ name, params, want string }{
		{"another one", `{"a":1.0,"model":"theirs","input":["<&\u2028"]}`, `{"a":1.0,"model":"our \"own\"","input":["<&\u2028"]}`},
		{"none", `{"a":9007199254740993}`, `{"a":9007199254740993,"model":"our \"own\""}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t, answering(http.StatusOK, says("done")))
			if _, err := e.model(t, agentserver.OpenAIConfig{Model: `our "own"`}).Respond(t.Context(), []byte(test.params)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]asked{{"/v1/responses", test.want}}, e.seen()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAModelEndpointIsNotTakenFromTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"OPENAI_BASE_URL": "http://127.0.0.1:1/", "OPENAI_API_KEY": "leak-key", "OPENAI_ADMIN_KEY": "leak-admin", "OPENAI_ORG_ID": "leak-org",
		"OPENAI_PROJECT_ID": "leak-project", "OPENAI_WEBHOOK_SECRET": "leak-hook", "OPENAI_CUSTOM_HEADERS": "X-Mine: leak-header",
		"HTTP_PROXY": "http://127.0.0.1:1",
	} {
		t.Setenv(name, value)
	}
	var header http.Header
	e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		answering(http.StatusOK, says("done"))(w, r)
	})
	if _, err := e.model(t, agentserver.OpenAIConfig{}).Respond(t.Context(), []byte(hi)); err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(header); strings.Contains(text, "leak") || header.Get("Authorization") != "" {
		t.Errorf("the headers are %s", text)
	}
}

func TestAnEndpointWithoutTheResponsesAPIIsAskedByChatFromThenOn(t *testing.T) {
	for _, status := range []int{404, 405, 501} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			e := newEndpoint(t, chatOnly(status, hello))
			var log bytes.Buffer
			model := e.model(t, agentserver.OpenAIConfig{Logger: zerolog.New(&log)})
			const want = `{"id":"c1","object":"response","created_at":7,"model":"m","output":[{"type":"message","id":"msg_c1","role":"assistant",` +
				`"status":"completed","content":[{"type":"output_text","text":"hello","annotations":[]}]}],"status":"completed"}`
			for range 2 {
				got, err := model.Respond(t.Context(), []byte(hi))
				if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
			}
			if diff := cmp.Diff([]string{"/v1/responses", "/v1/chat/completions", "/v1/chat/completions"}, e.paths()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if lines := strings.Count(log.String(), "no Responses API"); lines != 1 {
				t.Errorf("the log is %q", log.String())
			}
		})
	}
}

// Rounds that begin together may each find out; none of them fails for it.
func TestManyRoundsMayFindOutTogether(t *testing.T) {
	e := newEndpoint(t, chatOnly(http.StatusNotFound, hello))
	model := e.model(t, agentserver.OpenAIConfig{})
	var rounds sync.WaitGroup
	for range 20 {
		rounds.Go(func() {
			if _, err := model.Respond(t.Context(), []byte(hi)); err != nil {
				t.Error(err)
			}
		})
	}
	rounds.Wait()
}

func TestABaseURLWithNothingBehindItIsHintedAt(t *testing.T) {
	e := newEndpoint(t, answering(http.StatusNotFound, `{"detail":"Not Found"}`))
	model, err := agentserver.NewOpenAI(agentserver.OpenAIConfig{URL: e.url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Close)
	_, err = model.Respond(t.Context(), []byte(hi))
	if err == nil || !strings.Contains(err.Error(), "POST /chat/completions (most base URLs end in /v1, this one does not) with 404") {
		t.Errorf("got %v", err)
	}
}

func TestAnUnknownModelIsNoMissingAPI(t *testing.T) {
	for _, test := range []struct {
		name, body string
		reason     string
		paths      []string
	}{
		{"by its code", `{"error":{"message":"no model m","code":"model_not_found"}}`,
			"the model endpoint refused POST /responses with 404 Not Found: no model m", []string{"/v1/responses"}},
		{"by its parameter", `{"message":"no model m","param":"model","code":404}`,
			"the model endpoint refused POST /responses with 404 Not Found: no model m", []string{"/v1/responses"}},
		{"in words only", `{"error":{"message":"no model m","code":404}}`,
			"the model endpoint refused POST /responses and POST /chat/completions with 404 Not Found: no model m",
			[]string{"/v1/responses", "/v1/chat/completions"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t, answering(http.StatusNotFound, test.body))
			model := e.model(t, agentserver.OpenAIConfig{})
			for range 2 { // nothing is remembered of it
				_, err := model.Respond(t.Context(), []byte(hi))
				want := wanted{Status: http.StatusFailedDependency, Reason: test.reason}
				if diff := cmp.Diff(want, refusalIn(t, err)); diff != "" {
					t.Errorf("refusal (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(slices.Repeat(test.paths, 2), e.paths()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// wanted is what a refusal answers.
type wanted struct {
	Status     int
	Kind       failures.Kind
	Reason     string
	RetryAfter time.Duration
}

func refusalIn(t *testing.T, err error) wanted {
	t.Helper()
	var refusal *requests.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return wanted{refusal.Status, refusal.Kind, refusal.Error(), refusal.RetryAfter}
}

// A status that may pass stays what it is, any other is final for who drives the
// agent; neither is asked for twice.
func TestAnEndpointsRefusalIsPassedOn(t *testing.T) {
	const refused = "the model endpoint refused POST /responses with "
	for _, test := range []struct {
		name       string
		status     int
		retryAfter string
		body       string
		want       wanted
	}{
		{"bad params", 400, "", `{"error":{"message":"top_p is too much"}}`,
			wanted{Status: 424, Reason: refused + "400 Bad Request: top_p is too much"}},
		{"a wrong key", 401, "", `{"error":{"message":"Incorrect API key provided: sk-secret-1."}}`,
			wanted{Status: 424, Reason: refused + "401 Unauthorized: Incorrect API key provided: ***."}},
		{"no right", 403, "", `forbidden`, wanted{Status: 424, Reason: refused + "403 Forbidden: forbidden"}},
		{"a fault", 422, "", `{"detail":[{"loc":["body","n"],"msg":"too many"}]}`,
			wanted{Status: 424, Reason: refused + "422 Unprocessable Entity: body.n: too many"}},
		{"moved", 308, "", ``, wanted{Status: 424, Reason: refused + "308 Permanent Redirect: Permanent Redirect"}},
		{"too slow", 408, "", ``, wanted{Status: 408, Kind: failures.AgentRunError, Reason: refused + "408 Request Timeout: Request Timeout"}},
		{"too many", 429, "7", `{"error":{"message":"slow down"}}`,
			wanted{Status: 429, Kind: failures.AgentRequestFailed, Reason: refused + "429 Too Many Requests: slow down", RetryAfter: 7 * time.Second}},
		{"too many, until then", 429, "Fri, 15 Jan 2027 08:00:30 GMT", ``,
			wanted{Status: 429, Kind: failures.AgentRequestFailed, Reason: refused + "429 Too Many Requests: Too Many Requests", RetryAfter: 30 * time.Second}},
		{"a bug", 500, "", `<html><body>oops</body></html>`,
			wanted{Status: 500, Kind: failures.AgentRunError, Reason: refused + "500 Internal Server Error: oops"}},
		{"a model that loads", 503, "", `{"error":{"message":"Loading model"}}`,
			wanted{Status: 503, Kind: failures.AgentRequestFailed, Reason: refused + "503 Service Unavailable: Loading model"}},
		{"a kind of its own", 503, "", `{"detail":"no GPU","failure_kind":"provider_unavailable"}`,
			wanted{Status: 503, Kind: failures.ProviderUnavailable, Reason: refused + "503 Service Unavailable: no GPU"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", test.retryAfter)
				w.Header().Set("Location", "/elsewhere")
				answering(test.status, test.body)(w, r)
			})
			model := e.model(t, agentserver.OpenAIConfig{Key: "sk-secret-1", Clock: func() time.Time { return time.Unix(1_800_000_000, 0) }})
			_, err := model.Respond(t.Context(), []byte(hi))
			if diff := cmp.Diff(test.want, refusalIn(t, err)); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
			if n := len(e.seen()); n != 1 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
}

func TestAnEndpointThatDoesNotAnswerFailsTheTurn(t *testing.T) {
	const kind = failures.AgentRequestFailed
	for _, test := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"before the reply", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "the connection ended before the reply"},
		{"within the reply", cutOff(http.StatusOK), "the connection ended within the reply"},
		{"within a refusal", cutOff(http.StatusBadRequest), "the connection ended within the reply"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEndpoint(t, test.serve)
			_, err := e.model(t, agentserver.OpenAIConfig{}).Respond(t.Context(), []byte(hi))
			want := wanted{Status: http.StatusBadGateway, Kind: kind, Reason: "the model endpoint did not answer POST /responses: " + test.want}
			if diff := cmp.Diff(want, refusalIn(t, err)); diff != "" {
				t.Errorf("refusal (-want +got):\n%s", diff)
			}
			if n := len(e.seen()); n != 1 {
				t.Errorf("it was asked %d times", n)
			}
		})
	}
	t.Run("at all", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
		e := &endpoint{url: "http://" + listener.Addr().String()}
		_, err = e.model(t, agentserver.OpenAIConfig{}).Respond(t.Context(), []byte(hi))
		got := refusalIn(t, err)
		if got.Status != http.StatusBadGateway || got.Kind != kind || !strings.HasSuffix(got.Reason, "connection refused") || strings.Contains(got.Reason, "/v1") {
			t.Errorf("got %+v", got)
		}
	})
}

// cutOff answers half of what it announces.
func cutOff(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("half"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestAnEndpointsReplyIsBounded(t *testing.T) {
	e := newEndpoint(t, answering(http.StatusOK, `{"output":[]}`))
	if _, err := e.model(t, agentserver.OpenAIConfig{MaxReplyBytes: 13}).Respond(t.Context(), []byte(hi)); err != nil {
		t.Errorf("a reply as long as the limit: %v", err)
	}
	_, err := e.model(t, agentserver.OpenAIConfig{MaxReplyBytes: 12}).Respond(t.Context(), []byte(hi))
	want := wanted{Status: 500, Kind: failures.AgentRunError, Reason: "the reply of the model endpoint to POST /responses: it is longer than 12 bytes"}
	if diff := cmp.Diff(want, refusalIn(t, err)); diff != "" {
		t.Errorf("refusal (-want +got):\n%s", diff)
	}
}

// Only the start of a refusal is read, so that one without an end has one.
func TestAnEndlessRefusalEnds(t *testing.T) {
	e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("no ", 1000)); err != nil {
				return
			}
		}
	})
	_, err := e.model(t, agentserver.OpenAIConfig{}).Respond(t.Context(), []byte(hi))
	if got := refusalIn(t, err); got.Status != http.StatusFailedDependency || !strings.Contains(got.Reason, "Bad Request: no no no") {
		t.Errorf("got %+v", got)
	}
}

func TestARoundEndsWithItsContext(t *testing.T) {
	left := errors.New("the caller left")
	for _, path := range []string{"/v1/responses", "/v1/chat/completions"} {
		t.Run(path, func(t *testing.T) {
			reached := make(chan struct{})
			e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != path {
					http.NotFound(w, r)
					return
				}
				close(reached)
				<-r.Context().Done()
			})
			ctx, leave := context.WithCancelCause(t.Context())
			go func() {
				<-reached
				leave(left)
			}()
			if _, err := e.model(t, agentserver.OpenAIConfig{}).Respond(ctx, []byte(hi)); !errors.Is(err, left) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAModelGivesItsConnectionsBack(t *testing.T) {
	e := newEndpoint(t, answering(http.StatusOK, says("done")))
	transport := &givenBack{Transport: &http.Transport{}}
	model := e.model(t, agentserver.OpenAIConfig{Transport: transport})
	if _, err := model.Respond(t.Context(), []byte(hi)); err != nil {
		t.Fatal(err)
	}
	model.Close()
	if transport.times != 1 {
		t.Errorf("idle connections were given back %d times", transport.times)
	}
}

// givenBack is a transport that counts how often its idle connections are given back.
type givenBack struct {
	*http.Transport
	times int
}

func (g *givenBack) CloseIdleConnections() {
	g.times++
	g.Transport.CloseIdleConnections()
}

func TestAnOpenAIConfigIsChecked(t *testing.T) {
	const (
		noURL    = "want an absolute http or https URL such as http://127.0.0.1:8000/v1"
		noUser   = "the URL must not hold a user name or password"
		noQuery  = "the URL must not have a query or a fragment"
		noHeader = "the key has characters that a header cannot carry"
	)
	for _, test := range []struct {
		config agentserver.OpenAIConfig
		want   []string
	}{
		{agentserver.OpenAIConfig{URL: "http://localhost"}, nil},
		{agentserver.OpenAIConfig{URL: "https://models/v1/", Key: "sk-1", MaxReplyBytes: 1}, nil},
		{agentserver.OpenAIConfig{}, []string{noURL}},
		{agentserver.OpenAIConfig{URL: "127.0.0.1:8000/v1"}, []string{noURL}},
		{agentserver.OpenAIConfig{URL: "ftp://models"}, []string{noURL}},
		{agentserver.OpenAIConfig{URL: "http://user:secret@models?key=secret", Key: "secret\n", MaxReplyBytes: -1},
			[]string{noUser, noQuery, noHeader, "MaxReplyBytes is negative"}},
	} {
		var got []string
		if err := test.config.Validate(); err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.config.URL, diff)
		}
		if model, err := agentserver.NewOpenAI(test.config); (err == nil) != (test.want == nil) {
			t.Errorf("%q: made %v, %v", test.config.URL, model, err)
		}
	}
}

// A turn of an agent whose model is behind an endpoint: it calls a tool in one round
// and answers in the next. The caller is told when to come back.
func TestAnAgentAsksAnEndpoint(t *testing.T) {
	for name, replies := range map[string][]string{
		"by the Responses API": {calls("look", `{"at":1.0}`), says("done")},
		"by Chat Completions": {
			`{"choices":[{"message":{"tool_calls":[{"id":"call_0","type":"function","function":{"name":"look","arguments":"{\"at\":1.0}"}}]},"finish_reason":"tool_calls"}]}`,
			`{"choices":[{"message":{"content":"done"},"finish_reason":"stop"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			byChat := strings.HasPrefix(replies[0], `{"choices"`)
			round := 0
			e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				switch isChat := strings.HasSuffix(r.URL.Path, "/chat/completions"); {
				case isChat != byChat:
					http.NotFound(w, r)
				case round == len(replies):
					w.Header().Set("Retry-After", "3")
					answering(http.StatusTooManyRequests, `"enough"`)(w, r)
				default:
					round++
					answering(http.StatusOK, replies[round-1])(w, r)
				}
			})
			b := newBench(t, agentserver.Config{Model: e.model(t, agentserver.OpenAIConfig{})})
			cookie := b.seed("a", b.access("{}"))
			got := b.post("/v1/responses", cookie, `{"input":"hi"}`)
			if items := outputOf(t, got.Body); got.Status != http.StatusOK || len(items) != 3 || items[1] != output("call_0", `{"ok":true}`) {
				t.Errorf("got %+v", got)
			}
			if diff := cmp.Diff([]string{`{"at":1.0}`}, bodies(b.tools.seen())); diff != "" {
				t.Errorf("the tool got (-want +got):\n%s", diff)
			}
			refused := b.post("/v1/responses", cookie, `{"input":"hi"}`)
			if refused.Status != http.StatusTooManyRequests || !strings.Contains(refused.Body, `429 Too Many Requests: enough","failure_kind":"agent_request_failed"`) {
				t.Errorf("got %+v", refused)
			}
		})
	}
}

func bodies(calls []toolCall) []string {
	var bodies []string
	for _, call := range calls {
		bodies = append(bodies, call.Body)
	}
	return bodies
}
