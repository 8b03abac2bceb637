package conformance

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/turn/internal/scripted"
)

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeProgram makes a shell script that stands in for turn.
func writeProgram(t *testing.T, script string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "turn")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// toy is an environment server as small as one can be: it seeds with the
// request's body, closes whatever happens, and echoes what the seed said.
type toy struct{ servers *scripted.Servers }

func (e toy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	defer func() {
		if closed, err := http.Post(e.servers.ResourcesURL+"/close_session", "application/json", strings.NewReader(`{}`)); err == nil {
			_ = closed.Body.Close()
		}
	}()
	seed, err := http.NewRequestWithContext(r.Context(), http.MethodPost, e.servers.ResourcesURL+"/seed_session", strings.NewReader(string(body)))
	if err != nil {
		return
	}
	seed.Header.Set("Cookie", "a=1")
	reply, err := http.DefaultTransport.RoundTrip(seed)
	if err != nil {
		return
	}
	defer func() { _ = reply.Body.Close() }()
	w.WriteHeader(reply.StatusCode)
	_, _ = io.Copy(w, reply.Body)
}

func startToy(t *testing.T) (address string, servers *scripted.Servers) {
	servers = scripted.New(t)
	server := httptest.NewServer(toy{servers})
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), servers
}

func TestRecordKeepsWhatHappened(t *testing.T) {
	address, servers := startToy(t)
	c := Case{
		Requests: []Request{
			{Body: []byte(`"{{repeat}}"`), Repeat: 3, RepeatText: "é"},
			{BodyText: new(`{"a":"here"}`), Latin1Insert: "here", StartMs: 20},
		},
		Script: scripted.Script{scripted.Seed: {{Status: 201, Raw: new("first"), DelayMs: 20}, {Status: 202, Raw: new("second")}}},
		Want:   Want{Replies: make([]WantReply, 2)},
	}
	tr, err := Record(t.Context(), c, address, servers)
	if err != nil {
		t.Fatal(err)
	}
	if got := tr.Replies[0]; got.Status != 201 || string(got.Body) != "first" || got.Err != nil {
		t.Errorf("first reply %+v", got)
	}
	if got := tr.Replies[1]; got.Status != 202 || string(got.Body) != "second" {
		t.Errorf("second reply %+v", got)
	}
	if got := string(tr.Calls[0].Body); got != `"ééé"` {
		t.Errorf("first call has body %s", got)
	}
	var second Call
	for _, call := range tr.Calls {
		if call.Reply == "202" {
			second = call
		}
	}
	if string(second.Body) != "{\"a\":\"\xe9\xff\"}" || !slices.Equal(second.Cookies, []string{"a=1"}) || string(second.Answer) != "second" || second.step() != stepSeed {
		t.Errorf("second call %+v", second)
	}
	if tr.Elapsed < 20*time.Millisecond || len(tr.Calls) != 4 {
		t.Errorf("%d calls in %s", len(tr.Calls), tr.Elapsed)
	}
	if got := tr.normal([]byte(`["` + address + `"]`)).compact(); got != `["ENV_ADDR"]` {
		t.Errorf("the address reads %s", got)
	}
}

func TestRecordWaitsForTheCallsAfterACallerLeft(t *testing.T) {
	address, servers := startToy(t)
	c := Case{
		Requests: []Request{{Body: []byte(`{}`), DisconnectAfterMs: new(10)}},
		Script:   scripted.Script{scripted.Seed: {{DelayMs: 60_000}}},
		Want:     Want{Steps: []string{"seed", "close"}, Replies: []WantReply{{Disconnected: true}}},
		SettleMs: 1,
	}
	tr, err := Record(t.Context(), c, address, servers)
	if err != nil {
		t.Fatal(err)
	}
	if !tr.Replies[0].Disconnected {
		t.Errorf("reply %+v", tr.Replies[0])
	}
	if complaints := Check(c, tr); complaints != nil {
		t.Error(complaints)
	}
}

func TestProgramThatDoesNotListenIsReported(t *testing.T) {
	program := writeProgram(t, "#!/bin/sh\necho no such flag >&2\nexit 2\n")
	_, err := Start(t.Context(), program, nil, scripted.New(t))
	if err == nil || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("Start: %v", err)
	}
}

func TestServerIsStartedAndStopped(t *testing.T) {
	program := writeProgram(t, `#!/bin/sh
trap 'echo interrupted >&2; exit 0' INT
echo "$@" >&2
echo '{"level":"info","address":"127.0.0.1:1234","message":"listening"}' >&2
while :; do sleep 0.05; done
`)
	server, err := Start(t.Context(), program, []string{"--observability"}, scripted.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if server.Address != "127.0.0.1:1234" || !server.Running() {
		t.Errorf("at %s, running %t", server.Address, server.Running())
	}
	if err := server.Stop(); err != nil || server.Running() {
		t.Errorf("Stop: %v", err)
	}
	if log := server.Log(0); !strings.Contains(log, "--max-attempts 1 --observability\n") || !strings.HasSuffix(log, "interrupted\n") {
		t.Errorf("log:\n%s", log)
	}
}
