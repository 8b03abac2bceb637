package jsonapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/requests"
)

type answer struct {
	Status int
	Body   string
}

// ask sends a request to a router on a real socket.
func ask(t *testing.T, router *jsonapi.Router, method, path, contentType, body string) answer {
	t.Helper()
	server := httptest.NewServer(router)
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := response.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("the content type is %q", got)
	}
	return answer{response.StatusCode, string(text)}
}

func says(text string) jsonapi.Handler {
	return func(http.ResponseWriter, *http.Request) (rawjson.Body, error) {
		return rawjson.Body{[]byte(`"`), []byte(text + `"`)}, nil
	}
}

func fails(err error) jsonapi.Handler {
	return func(http.ResponseWriter, *http.Request) (rawjson.Body, error) { return nil, err }
}

func TestRoutesAnswerWithAndWithoutACapturePrefix(t *testing.T) {
	router := &jsonapi.Router{Routes: map[string]jsonapi.Handler{
		"GET /":                         says("root"),
		"POST /verify":                  says("verify"),
		"POST /v1/responses":            says("responses"),
		"POST /ng-rollout":              says("a tool of that name"),
		"POST /ng-rollout/alone":        says("a path with a key only"),
		"POST /training-token-captured": says("a tool of that name"),
	}}
	for _, test := range []struct {
		method, path string
		want         answer
	}{
		{"GET", "/", answer{200, `"root"`}},
		{"POST", "/verify", answer{200, `"verify"`}},
		{"POST", protocol.RolloutPath("0-0-a1", "/verify"), answer{200, `"verify"`}},
		{"POST", protocol.ResponsesPath("0-0", false), answer{200, `"responses"`}},
		{"POST", protocol.ResponsesPath("0-0", true), answer{200, `"responses"`}},
		{"POST", "/ng-rollout", answer{200, `"a tool of that name"`}},
		{"POST", "/ng-rollout/alone", answer{200, `"a path with a key only"`}},
		{"POST", "/ng-rollout/0-0/training-token-captured", answer{200, `"a tool of that name"`}},
		{"GET", "/verify", answer{405, `{"detail":"Method Not Allowed: /verify takes POST"}`}},
		{"POST", "/nothing", answer{404, `{"detail":"Not Found: there is no POST /nothing here"}`}},
		{"POST", "/ng-rollout//verify", answer{404, `{"detail":"Not Found: there is no POST /ng-rollout//verify here"}`}},
		{"POST", "/0-0/verify", answer{404, `{"detail":"Not Found: there is no POST /0-0/verify here"}`}},
	} {
		if diff := cmp.Diff(test.want, ask(t, router, test.method, test.path, "", "")); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.method, test.path, diff)
		}
	}
}

func TestErrorsAreAnsweredWithWhatTheyAre(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler jsonapi.Handler
		want    answer
	}{
		{"faults", fails(requests.Invalid{{Type: "missing", Loc: []any{"body", "a"}, Msg: "Field required"}}),
			answer{422, `{"detail":[{"type":"missing","loc":["body","a"],"msg":"Field required"}]}`}},
		{"a refusal", fails(requests.Refuse(409, "bound to <another>")), answer{409, `{"detail":"bound to <another>"}`}},
		{"a refusal with a kind", fails(requests.RefuseAs(404, failures.SessionLost, "gone")),
			answer{404, `{"detail":"gone","failure_kind":"session_lost"}`}},
		{"a refusal without a status", fails(&requests.Refusal{Reason: "broken"}), answer{500, `{"detail":"broken"}`}},
		{"another error", fails(errors.New("broken")), answer{500, `{"detail":"broken"}`}},
		{"a panic", func(http.ResponseWriter, *http.Request) (rawjson.Body, error) { panic("oops") },
			answer{500, `{"detail":"a bug in this server: oops"}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			router := &jsonapi.Router{Routes: map[string]jsonapi.Handler{"POST /x": test.handler}}
			if diff := cmp.Diff(test.want, ask(t, router, "POST", "/x", "", "")); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestARefusalSaysWhenToComeBack(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"not said", requests.Refuse(503, "no free GPU"), ""},
		{"whole seconds", &requests.Refusal{Status: 503, RetryAfter: 7 * time.Second}, "7"},
		{"not too early", &requests.Refusal{Status: 503, RetryAfter: 1001 * time.Millisecond}, "2"},
		{"hours", fmt.Errorf("wrapped: %w", &requests.Refusal{Status: 503, RetryAfter: 1000 * time.Hour}), "3600000"},
		{"the past", &requests.Refusal{Status: 503, RetryAfter: -time.Second}, ""},
		{"another error", errors.New("broken"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			router := &jsonapi.Router{Routes: map[string]jsonapi.Handler{"POST /x": fails(test.err)}}
			answered := httptest.NewRecorder()
			router.ServeHTTP(answered, httptest.NewRequestWithContext(t.Context(), "POST", "/x", nil))
			if got := answered.Header().Get("Retry-After"); got != test.want {
				t.Errorf("Retry-After is %q, want %q", got, test.want)
			}
		})
	}
}

func TestAnAbortedHandlerDropsTheConnection(t *testing.T) {
	router := &jsonapi.Router{Routes: map[string]jsonapi.Handler{
		"POST /x": func(http.ResponseWriter, *http.Request) (rawjson.Body, error) { panic(http.ErrAbortHandler) },
	}}
	server := httptest.NewServer(router)
	defer server.Close()
	response, err := server.Client().Post(server.URL+"/x", "", nil)
	if err == nil {
		_ = response.Body.Close()
		t.Errorf("it was answered with %s", response.Status)
	}
}

func TestOnlyBugsAndErrorsAreLoggedLoud(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler jsonapi.Handler
		gone    bool
		want    string // a piece of the log; "": nothing is logged
	}{
		{"a refusal", fails(requests.Refuse(409, "bound")), false, ""},
		{"an error", fails(errors.New("broken")), false, `{"level":"error","path":"/x","error":"broken"`},
		{"a refusal that is this server's failure", fails(requests.RefuseAs(503, failures.ProviderUnavailable, "no free GPU")), false,
			`{"level":"warn","path":"/x","failure_kind":"provider_unavailable","error":"no free GPU"`},
		{"a refusal for a caller that went away", fails(requests.Refuse(503, "no free GPU")), true, ""},
		{"an error for a caller that went away", fails(context.Canceled), true, ""},
		{"a panic", func(http.ResponseWriter, *http.Request) (rawjson.Body, error) { panic("oops") }, false, "jsonapi_test.go"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			router := &jsonapi.Router{
				Routes: map[string]jsonapi.Handler{"POST /x": test.handler},
				Logger: zerolog.New(&log).Level(zerolog.InfoLevel),
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			if test.gone {
				leave()
			}
			router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/x", nil))
			if test.want == "" && log.Len() > 0 || !strings.Contains(log.String(), test.want) {
				t.Errorf("the log is %q, want a piece %q", log.String(), test.want)
			}
		})
	}
}

func TestABodyIsAnObjectSentAsJSON(t *testing.T) {
	const limit = 30
	for _, test := range []struct {
		name, contentType, body string
		want                    answer
	}{
		{"an object", "application/json", ` {"a": 1.0} `, answer{200, ` {"a": 1.0} `}},
		{"with parameters", "application/json; charset=utf-8", `{}`, answer{200, `{}`}},
		{"as a form", "application/x-www-form-urlencoded", `{}`, answer{415, `{"detail":"the body must be sent as application/json"}`}},
		{"as nothing", "", `{}`, answer{415, `{"detail":"the body must be sent as application/json"}`}},
		{"an array", "application/json", `[]`,
			answer{422, `{"detail":[{"type":"dict_type","loc":["body"],"msg":"Input should be a valid dictionary"}]}`}},
		{"no JSON", "application/json", `{"a":}`,
			answer{422, `{"detail":[{"type":"json_invalid","loc":["body",5],"msg":"JSON decode error: \"}\" where a value should be"}]}`}},
		{"nothing", "application/json", ``,
			answer{422, `{"detail":[{"type":"json_invalid","loc":["body",0],"msg":"JSON decode error: the text ends where a value should be"}]}`}},
		{"too long", "application/json", `{"a":"` + strings.Repeat("x", limit) + `"}`,
			answer{413, `{"detail":"the request's body is longer than 30 bytes"}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			router := &jsonapi.Router{Routes: map[string]jsonapi.Handler{
				"POST /x": func(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
					body, err := jsonapi.ReadObject(w, r, limit)
					return rawjson.Body{body}, err
				},
			}}
			if diff := cmp.Diff(test.want, ask(t, router, "POST", "/x", test.contentType, test.body)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestABodyThatBreaksOffIsRefused(t *testing.T) {
	request := httptest.NewRequest("POST", "/x", io.MultiReader(strings.NewReader(`{"a":`), brokenReader{}))
	request.Header.Set("Content-Type", "application/json")
	_, err := jsonapi.ReadObject(httptest.NewRecorder(), request, 100)
	var refusal *requests.Refusal
	if !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest {
		t.Errorf("got %v, want a refusal with 400", err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestIDsOfABody(t *testing.T) {
	for _, test := range []struct {
		name, body string
		episode    protocol.EpisodeID
		task       protocol.TaskID
		want       string // faults
	}{
		{name: "both", body: `{"episode_id":{"rollout_id":"0-0","attempt":2},"task_id":{"taskset":"s","task_id":"t"}}`,
			episode: protocol.EpisodeID{RolloutID: "0-0", Attempt: 2}, task: protocol.TaskID{Taskset: "s", TaskID: "t"}},
		{name: "without an attempt", body: `{"episode_id":{"rollout_id":"0-0"},"task_id":{"taskset":"s","task_id":"t"}}`,
			episode: protocol.EpisodeID{RolloutID: "0-0"}, task: protocol.TaskID{Taskset: "s", TaskID: "t"}},
		{name: "missing", body: `{}`, want: "body.episode_id: Field required; body.task_id: Field required"},
		{name: "as texts", body: `{"episode_id":"0-0","task_id":"t"}`,
			want: "body.episode_id: Input should be a valid dictionary; body.task_id: Input should be a valid dictionary"},
		{name: "with strangers", body: `{"episode_id":{"rollout_id":"0-0","a":1},"task_id":{"taskset":"s","task_id":"t","b":1}}`,
			episode: protocol.EpisodeID{RolloutID: "0-0"}, task: protocol.TaskID{Taskset: "s", TaskID: "t"},
			want: "body.episode_id.a: Extra inputs are not permitted; body.task_id.b: Extra inputs are not permitted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			fields := requests.Read([]byte(test.body), "body")
			if diff := cmp.Diff(test.episode, jsonapi.EpisodeID(fields)); diff != "" {
				t.Errorf("episode (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.task, jsonapi.TaskID(fields)); diff != "" {
				t.Errorf("task (-want +got):\n%s", diff)
			}
			got := ""
			if err := fields.Err(); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMarshalLeavesTextAsItIs(t *testing.T) {
	got, err := jsonapi.Marshal(map[string]string{"a": "<b> & 'c'"})
	if want := `{"a":"<b> & 'c'"}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if _, err := jsonapi.Marshal(func() {}); err == nil {
		t.Error("a function was encoded")
	}
}
