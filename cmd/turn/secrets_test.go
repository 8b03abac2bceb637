package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The secrets that a run comes to know, and from whom.
const (
	resourcesCookie   = "res-c00kie-value"       // the resources server's seed
	agentCookie       = "agent-c00kie-value"     // the agent server's seed
	broughtCookie     = "br0ught-back-value"     // the agent's close
	mcpToken          = "mcp-t0ken-value"        // resources_tools, in an Authorization header
	mcpKey            = "mcp-k3y-value"          // in another header
	mcpQuery          = "mcp-qu3ry-value"        // in the query of the URL
	sandboxDescriptor = "sandb0x-access-value"   // sandbox_access
	modelSecret       = "sk-0penai-key-value"    // OPENAI_API_KEY
	wrongToken        = "wr0ng-t0ken/+value=="   // a token that is refused, of characters that URLs escape
	anotherToken      = "an0ther-t0ken/+value==" // of an environment server that is not ours
)

// repeated is what a server says that knows them all.
const repeated = "I know " + resourcesCookie + ", " + agentCookie + ", " + broughtCookie + ", Bearer " + mcpToken + ", " + mcpKey + ", /mcp?key=" + mcpQuery + ", Bearer " + serverToken

// early is repeated before the agent's close has brought its cookie.
var early = strings.ReplaceAll(repeated, broughtCookie, mcpKey)

// never are the forms in which no secret may be found anywhere.
func never() []string {
	var forms []string
	for _, secret := range []string{
		resourcesCookie, agentCookie, broughtCookie, mcpToken, mcpKey, mcpQuery, sandboxDescriptor, modelSecret, wrongToken, anotherToken,
		serverToken, environmentToken,
	} {
		forms = append(forms, secret, url.QueryEscape(secret), url.PathEscape(secret))
	}
	return forms
}

// A telling is where a server of an episode tells what it knows.
type telling struct {
	name        string
	path        string // where the call's ends
	status      int    // 0: the connection gets the body and no more
	contentType string
	body        string
	reason      string // what the failure says in place of the secrets; "": the episode does not fail
}

// masked is repeated as it may be shown.
const masked = "I know ***, ***, ***, ***, ***, /mcp?***, Bearer ***"

var tellings = []telling{
	{"nothing", "", 0, "", "", ""},
	{"a seed", "/seed_session", 401, "application/json", `{"detail":"no such token: ` + serverToken + `"}`, "no such token: ***"},
	{"an agent's seed", "/v1/agent_sessions", 422, "application/json", `{"detail":[{"loc":["body","tool_accesses"],"msg":"` + strings.ReplaceAll(early, agentCookie, mcpKey) + `"}]}`, masked},
	{"a turn, as a page", "/v1/responses", 500, "text/html", "<html><body><p>" + early + "</p></body></html>", masked},
	{"a turn, behind a server", "/v1/responses", 500, "application/json", `"Hit an exception in SimpleAgent___a calling an inner server: b'{\"detail\":\"` + early + `\"}'"`, masked},
	{"a turn, as text", "/v1/responses", 400, "text/plain", "Authorization: Bearer " + serverToken + "\r\nCookie: s=" + agentCookie, "Cookie: s=***"},
	{"a failure kind", "/v1/responses", 500, "application/json", `{"failure_kind":"` + serverToken + `","detail":"it has a kind"}`, "it has a kind"},
	{"an agent's close", "/v1/agent_sessions/close", 400, "application/json", `{"detail":"` + early + `"}`, masked},
	{"an agent's close with another id", "/v1/agent_sessions/close", 200, "application/json", `{"agent_session_id":"` + serverToken + `"}`, "that was sent"},
	{"a verify", "/verify", 422, "application/json", `{"error":{"message":"` + repeated + `"}}`, masked},
	{"a verify that is no HTTP", "/verify", 0, "", "HTTP/1.1 " + serverToken + " OK\r\n\r\n", "***"},
	{"a verify with headers that are none", "/verify", 0, "", "HTTP/1.1 200 OK\r\nSet-Cookie " + resourcesCookie + "\r\n\r\n", "headers are not HTTP"},
	{"a close", "/close_session", 409, "application/json", `{"detail":"` + repeated + `"}`, ""},
	{"nothing again", "", 0, "", "", ""},
}

// A teller is both servers of a run that has one episode at a time: it hands out every
// secret that there is, and the n-th episode has it tell them as the n-th telling says.
type teller struct {
	mu    sync.Mutex
	at    int
	asked map[string][]string // the bodies of the agent's seeds, and the paths of calls without the token
}

func (s *teller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	say, now := s.next(r, body)
	if say {
		now.tell(w)
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/aggregate_metrics"):
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"detail":"Bearer `+serverToken+`"}`)
	case strings.HasSuffix(r.URL.Path, "/seed_session"):
		w.Header().Add("Set-Cookie", "res="+resourcesCookie+"; Path=/; HttpOnly")
		_, _ = fmt.Fprintf(w, `{"resources_session_id":"%s","resources_tools":{"server_name":"bench-mcp","url_path":"/mcp?key=%s","headers":{"Authorization":"Bearer %s","X-Key":"%s"}},`+
			`"sandbox_access":{"connection":{"kind":"direct","provider_config_ref":"p","descriptor":{"key":"%s"}},"workdir":"/w"}}`,
			valueOf(body, "resources_session_id"), mcpQuery, mcpToken, mcpKey, sandboxDescriptor)
	case strings.HasSuffix(r.URL.Path, "/v1/agent_sessions"):
		w.Header().Add("Set-Cookie", "agent="+agentCookie+"; Path=/; HttpOnly")
		_, _ = fmt.Fprintf(w, `{"agent_session_id":"%s"}`, valueOf(body, "agent_session_id"))
	case strings.HasSuffix(r.URL.Path, "/v1/agent_sessions/close"):
		observations := "null"
		if now.path == "/verify" {
			observations = `[{"text":"` + repeated + `"}]`
		}
		_, _ = fmt.Fprintf(w, `{"agent_session_id":"%s","agent_observations":%s,"resources_cookies":{"shard":"%s"}}`, valueOf(body, "agent_session_id"), observations, broughtCookie)
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		newStub(0).ServeHTTP(w, r)
	}
}

// next is the telling of the episode, and whether this is its place.
func (s *teller) next(r *http.Request, body []byte) (say bool, now telling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/seed_session") {
		s.at++
	}
	if strings.HasSuffix(r.URL.Path, "/v1/agent_sessions") {
		s.asked["agent seeds"] = append(s.asked["agent seeds"], string(body))
	}
	if r.Header.Get("Authorization") != "Bearer "+serverToken {
		s.asked["without a token"] = append(s.asked["without a token"], r.URL.Path)
	}
	if s.at == 0 || s.at > len(tellings) { // a check, or metrics
		return false, telling{}
	}
	now = tellings[s.at-1]
	return now.path != "" && strings.HasSuffix(r.URL.Path, now.path), now
}

func (n telling) tell(w http.ResponseWriter) {
	if n.status != 0 {
		w.Header().Set("Content-Type", n.contentType)
		w.WriteHeader(n.status)
		_, _ = io.WriteString(w, n.body)
		return
	}
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_, _ = io.WriteString(conn, n.body)
		_ = conn.Close()
	}
}

// A leakTest is what the programs of a test have written.
type leakTest struct {
	dir     string                   // of their files
	streams map[string]*bytes.Buffer // the standard output of each
}

// start starts a program, of which the standard output is kept.
func (l *leakTest) start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	command := exec.Command(os.Args[0], args...)
	command.Env = []string{keyVariable + "=" + modelSecret}
	l.streams[name] = &bytes.Buffer{}
	command.Stdout = l.streams[name]
	return startProgram(t, command)
}

// look wants no secret in a text.
func look(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range never() {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s has %s: …%s", where, secret, text[max(0, at-300):min(len(text), at+100)])
		}
	}
}

// lookAtFiles wants no secret in any file that was written, nor in its name.
func (l *leakTest) lookAtFiles(t *testing.T, least int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(l.dir, "*"))
	if err != nil || len(files) < least {
		t.Fatalf("the files are %v, %v", files, err)
	}
	for _, file := range files {
		look(t, filepath.Base(file), file+"\n"+readText(t, file))
	}
}

// newLeakTest starts the two servers of a test, and returns the flags of a run with
// them that has one episode for each telling.
func newLeakTest(t *testing.T) (l *leakTest, s *teller, url, dataset string) {
	t.Helper()
	s = &teller{asked: map[string][]string{}}
	rows := make([]string, len(tellings))
	for i := range rows {
		rows[i] = fmt.Sprintf(`{"responses_create_params":{"input":"hi"},"n":%d}`, i)
	}
	return &leakTest{dir: t.TempDir(), streams: map[string]*bytes.Buffer{}}, s, serving(t, s), rowsOf(t, rows...)
}

// wantTold wants every telling to have been heard: the failures have the words without
// the secrets, and the agent was handed what is its own to know.
func wantTold(t *testing.T, s *teller, output string) {
	t.Helper()
	failures := strings.Split(strings.TrimSpace(readText(t, strings.TrimSuffix(output, ".jsonl")+"_failures.jsonl")), "\n")
	results := len(linesOf(t, output))
	for _, told := range tellings {
		if told.reason == "" {
			results--
			continue
		}
		if len(failures) == 0 || !strings.Contains(failures[0], told.reason) {
			t.Fatalf("%s: the failure lacks %q: %s", told.name, told.reason, failures)
		}
		failures = failures[1:]
	}
	if len(failures) > 0 || results != 0 {
		t.Errorf("there are failures %s and %d results that nobody told of", failures, results)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked["without a token"]) > 0 {
		t.Errorf("these came without the token: %v", s.asked["without a token"])
	}
	for _, seed := range s.asked["agent seeds"] {
		for _, known := range []string{resourcesCookie, mcpToken, mcpKey, mcpQuery, sandboxDescriptor} {
			if !strings.Contains(seed, known) {
				t.Errorf("the agent was not handed %s", known)
			}
		}
		if strings.Contains(seed, serverToken) || strings.Contains(seed, environmentToken) {
			t.Errorf("the agent was handed a token: %s", seed)
		}
	}
	if len(s.asked["agent seeds"]) == 0 {
		t.Error("no agent was asked")
	}
}

// lookAtStreams wants no secret in what the programs have printed.
func (l *leakTest) lookAtStreams(t *testing.T, logs map[string]string) {
	t.Helper()
	for name, out := range l.streams {
		look(t, "the standard output of "+name, out.String())
	}
	for name, text := range logs {
		if !strings.Contains(text, "***") {
			t.Errorf("the log of %s has nothing masked, so that this shows nothing:\n%s", name, text)
		}
		look(t, "the standard error of "+name, text)
	}
}

// A run that drives the servers itself writes no secret: not to its log, its events,
// its files, nor to those of turn aggregate.
func TestARunWritesNoSecret(t *testing.T) {
	l, s, url, dataset := newLeakTest(t)
	output := filepath.Join(l.dir, "r.jsonl")
	token := fileOf(t, serverToken)
	run := l.start(t, "run",
		"run", dataset, "-o", output, "--resources", url, "--agent", url, "--server-token-file", token,
		"--tool-transport", "direct_http,mcp", "--concurrency", "1", "--max-attempts", "1", "--json")
	logs := map[string]string{"run": run.ends(t, exitPartly)}
	wantTold(t, s, output)
	aggregate := l.start(t, "aggregate", "aggregate", output, "-o", filepath.Join(l.dir, "all.jsonl"), "--resources", url, "--server-token-file", token)
	logs["aggregate"] = aggregate.ends(t, exitPartly)
	l.lookAtStreams(t, logs)
	if !strings.Contains(l.streams["run"].String(), "***") {
		t.Error("the events have nothing masked, so that this shows nothing")
	}
	l.lookAtFiles(t, 6)
}

// Nor does one through an environment server of ours, nor that, nor what it says to
// whoever calls and scrapes it.
func TestAnEnvironmentServerWritesNoSecret(t *testing.T) {
	l, s, url, dataset := newLeakTest(t)
	output, refused := filepath.Join(l.dir, "r.jsonl"), filepath.Join(l.dir, "refused.jsonl")
	token := fileOf(t, environmentToken)
	serve := l.start(t, "serve",
		"serve", "--listen", "127.0.0.1:0", "--auth-token-file", token, "--resources", url, "--agent", url, "--server-token-file", fileOf(t, serverToken),
		"--tool-transport", "direct_http,mcp", "--max-attempts", "1")
	environment := "http://" + serve.awaitLog(t, "listening")["address"].(string)
	run := l.start(t, "run",
		"run", dataset, "-o", output, "--environment", environment, "--environment-token-file", token, "--concurrency", "1", "--max-attempts", "1", "--json")
	logs := map[string]string{"run": run.ends(t, exitPartly)}
	wantTold(t, s, output)
	stranger := l.start(t, "a refused run",
		"run", dataset, "-o", refused, "--limit", "1", "--environment", environment, "--environment-token-file", fileOf(t, wrongToken), "--json")
	look(t, "the standard error of a refused run", stranger.ends(t, exitPartly))
	for _, shown := range []string{environmentToken, wrongToken} {
		for _, path := range []string{"/metrics", "/run", "/aggregate_metrics", "/readyz"} {
			look(t, "the reply of "+path, fetched(t, environment+path, shown))
		}
	}
	if scrape := fetched(t, environment+"/metrics", environmentToken); !strings.Contains(scrape, `turn_episodes_total{kind="agent_run_error",outcome="failure",stage="agent"} 3`) {
		t.Errorf("the scrape counts nothing: %s", scrape)
	}
	serve.signal(t, os.Interrupt)
	logs["serve"] = serve.ends(t, 0)
	l.lookAtStreams(t, logs)
	l.lookAtFiles(t, 6)
}

// fetched is a whole reply to a GET that shows that token, headers included.
func fetched(t *testing.T, url, token string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(soon(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(response.Status, response.Header, string(body))
}

// An environment server of another kind may repeat the token in all that it says.
func TestATokenThatAnEnvironmentServerRepeatsIsNotWritten(t *testing.T) {
	replies := []string{
		`{"detail":"no: %s"}`,
		`{"episode_id":{"rollout_id":"1-0","attempt":0},"task_id":{"taskset":"tasks","task_id":"t-1"},"result":null,"failure":{"failure_reason":"no: %s","terminal":true,"cleanup_error":"no: %s","failure_kind":"acme:x"}}`,
		`{"episode_id":{"rollout_id":"%s","attempt":0},"task_id":{"taskset":"tasks","task_id":"t-2"},"result":null,"failure":null}`,
		`"Hit an exception in a calling an inner server: b'no: %s'"`,
	}
	statuses := []int{401, 200, 200, 500}
	var mu sync.Mutex
	asked := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n := min(asked, len(replies)-1)
		asked++
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(statuses[n])
		_, _ = io.WriteString(w, strings.ReplaceAll(replies[n], "%s", r.Header.Get("Authorization")))
	})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	l := &leakTest{dir: t.TempDir(), streams: map[string]*bytes.Buffer{}}
	output := filepath.Join(l.dir, "r.jsonl")
	var rows []string
	for i := range replies {
		rows = append(rows, fmt.Sprintf(`{"task_id":{"taskset":"tasks","task_id":"t-%d"},"task_input":{"responses_create_params":{"input":"hi"},"task_data":{}}}`, i))
	}
	run := l.start(t, "run",
		"run", rowsOf(t, rows...), "-o", output, "--environment", server.URL, "--environment-token-file", fileOf(t, anotherToken),
		"--concurrency", "1", "--max-attempts", "1", "--json")
	l.lookAtStreams(t, map[string]string{"run": run.ends(t, exitPartly)})
	l.lookAtFiles(t, 3)
	failures := readText(t, filepath.Join(l.dir, "r_failures.jsonl"))
	if got := strings.Count(failures, "no: Bearer ***"); got < 3 || strings.Count(failures, "\n") != len(replies) {
		t.Errorf("the words are there %d times: %s", got, failures)
	}
}

// Nor is the key of a model that the agent of an embedded environment asks written.
func TestAModelsKeyIsNotWritten(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"no: %s"}}`, r.Header.Get("Authorization"))
	}))
	t.Cleanup(server.Close)
	l := &leakTest{dir: t.TempDir(), streams: map[string]*bytes.Buffer{}}
	run := l.start(t, "run", "run", "../../testdata/weather.jsonl", "--limit", "2", "-o", filepath.Join(l.dir, "r.jsonl"), "--embedded", "weather", "--model-url", server.URL+"/v1", "--json")
	l.lookAtStreams(t, map[string]string{"run": run.ends(t, exitPartly)})
	l.lookAtFiles(t, 3)
}

// A check prints what it sent and what came back, without the secrets.
func TestACheckPrintsNoSecret(t *testing.T) {
	l, _, url, _ := newLeakTest(t)
	token := fileOf(t, serverToken)
	for name, args := range map[string][]string{
		"resources": {"check", "resources", url, "--seed", "../../testdata/check/weather-seed.json", "--server-token-file", token},
		"agent":     {"check", "agent", url, "--seed", "../../testdata/check/weather-agent.json", "--server-token-file", token},
	} {
		look(t, "the standard error of "+name, l.start(t, name, args...).ends(t, exitFailed))
		printed := strings.ReplaceAll(l.streams[name].String(), sandboxDescriptor, "") // it is in the body that came back
		if !strings.Contains(printed, "***") {
			t.Errorf("%s has nothing masked, so that this shows nothing:\n%s", name, printed)
		}
		look(t, "the standard output of "+name, printed)
	}
}
