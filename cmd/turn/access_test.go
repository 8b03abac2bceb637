package main

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/internal/testcerts"
)

const (
	serverToken      = "server_t0ken_value" // a well-formed failure kind
	environmentToken = "envir0nment-t0ken-value"
)

// fileOf writes a file and returns its path.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// behindTLS serves a handler on loopback, over TLS with that certificate, and returns
// its URL.
func behindTLS(t *testing.T, certificate tls.Certificate, handler http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail on purpose
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// asking lets those through who show that token, and no other.
func asking(t *testing.T, token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+token {
			t.Errorf("%s came with %q", r.URL.Path, got)
		}
		next.ServeHTTP(w, r)
	})
}

// ends wants a program to end with that status, and returns its standard error.
func (p *process) ends(t *testing.T, want int) string {
	t.Helper()
	status := p.awaitExit(t).ExitStatus()
	p.mu.Lock()
	defer p.mu.Unlock()
	if status != want {
		t.Fatalf("exit status %d, want %d:\n%s", status, want, p.log.String())
	}
	return p.log.String()
}

// A run through an environment server of ours, to servers of others, with TLS and a
// token on every way.
func TestTLSAndTokensOnEveryWay(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	certificate := authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour))
	servers := behindTLS(t, certificate.Certificate, asking(t, serverToken, newStub(100)))
	ca := []string{"--ca-file", authority.File(t)}
	access := append([]string{"--server-token-file", fileOf(t, serverToken+"\n")}, ca...)
	environmentAccess := append([]string{"--environment-token-file", fileOf(t, "  "+environmentToken+"\r\n")}, ca...)

	serve := start(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--auth-token-file", fileOf(t, environmentToken),
		"--tls-cert", certificate.CertFile, "--tls-key", certificate.KeyFile, "--resources", servers, "--agent", servers}, access...)...)
	line := serve.awaitLog(t, "listening")
	if line["tls"] != true || line["auth_token"] != true || line["server_token"] != true {
		t.Errorf("the log says %v", line)
	}
	url := "https://" + line["address"].(string)
	dir := t.TempDir()
	through, direct := filepath.Join(dir, "through.jsonl"), filepath.Join(dir, "direct.jsonl")
	dataset := "../../testdata/weather.jsonl"

	start(t, append([]string{"run", dataset, "-o", through, "--environment", url}, environmentAccess...)...).ends(t, 0)
	start(t, append([]string{"run", dataset, "-o", direct, "--resources", servers, "--agent", servers}, access...)...).ends(t, 0)
	start(t, append([]string{"aggregate", through, "-o", filepath.Join(dir, "a.jsonl"), "--environment", url}, environmentAccess...)...).ends(t, 0)
	start(t, append([]string{"aggregate", direct, "-o", filepath.Join(dir, "b.jsonl"), "--resources", servers}, access...)...).ends(t, 0)
	for _, output := range []string{"through", "direct", "a", "b"} {
		if got := len(linesOf(t, filepath.Join(dir, output+".jsonl"))); got != 20 {
			t.Errorf("%s has %d results, want 20", output, got)
		}
		if got := readText(t, filepath.Join(dir, output+"_aggregate_metrics.json")); !strings.Contains(got, `"bytes":`) {
			t.Errorf("the metrics of %s are not the server's: %s", output, got)
		}
	}

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Roots()}, DisableKeepAlives: true}}
	for path, want := range map[string]int{"/readyz": 200, "/metrics": 401} {
		response, err := client.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, response.StatusCode, want)
		}
	}
	serve.signal(t, os.Interrupt)
	serve.ends(t, 0)
}

// The model endpoint may have a certificate of one's own authority as well.
func TestTheAuthorityCountsForTheModel(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	model := behindTLS(t, authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I do not know."}]}]}`)
	}))
	args := []string{"run", "../../testdata/weather.jsonl", "--limit", "1", "--max-attempts", "1", "--embedded", "weather", "--model-url", model, "-o"}
	output := filepath.Join(t.TempDir(), "r.jsonl")
	start(t, append(args, output, "--ca-file", authority.File(t))...).ends(t, 0)
	if got := readText(t, output); !strings.Contains(got, "I do not know.") {
		t.Errorf("the result is %s", got)
	}
	log := start(t, append(args, filepath.Join(t.TempDir(), "r.jsonl"))...).ends(t, exitPartly)
	if !strings.Contains(log, "the model endpoint did not answer POST /responses: its certificate is signed by an unknown authority (--ca-file FILE has it known)") {
		t.Errorf("the log does not say why the model is not asked:\n%s", log)
	}
}

// What SSL_CERT_FILE names is trusted without a flag.
func TestSSLCertFileIsTrusted(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	servers := behindTLS(t, authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate, newStub(100))
	command := exec.Command(os.Args[0], "run", "../../testdata/weather.jsonl", "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--resources", servers, "--agent", servers)
	command.Env = []string{"SSL_CERT_FILE=" + authority.File(t)}
	startProgram(t, command).ends(t, 0)
}

// A server that the run has no right to call, or that is not the one it should be, is
// the failure of each rollout, with the words that say what to do.
func TestWhyAnEnvironmentServerIsNotCalled(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	hour := time.Now().Add(time.Hour)
	certificate := authority.Certificate(t, "127.0.0.1", hour)
	servers := behindTLS(t, certificate.Certificate, newStub(100))
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--auth-token-file", fileOf(t, environmentToken), "--tls-cert", certificate.CertFile, "--tls-key", certificate.KeyFile,
		"--resources", servers, "--agent", servers)
	address := p.awaitLog(t, "listening")["address"].(string)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	expired := behindTLS(t, authority.Certificate(t, "127.0.0.1", time.Now().Add(-time.Hour)).Certificate, newStub(100))
	ca, wrong := []string{"--ca-file", authority.File(t)}, []string{"--ca-file", authority.File(t), "--environment-token-file", fileOf(t, "wr0ng-token")}
	for _, test := range []struct {
		name, url string
		flags     []string
		kind      string // of the failure; "": it is a refusal, and final
		reason    string
	}{
		{"an unknown authority", "https://" + address, nil, "transport_unreachable", "its certificate is signed by an unknown authority (--ca-file FILE has it known)"},
		{"an expired certificate", expired, ca, "transport_unreachable", "its certificate is refused: certificate has expired or is not yet valid"},
		{"another host name", "https://localhost:" + port, ca, "transport_unreachable", "its certificate is refused: certificate is not valid for any names, but wanted to match localhost"},
		{"https where there is none", strings.Replace(serving(t, newStub(100)), "http:", "https:", 1), ca, "transport_unreachable", "it does not speak TLS, and its URL begins with https"},
		{"no token", "https://" + address, ca, "", "refused POST /run with 401 Unauthorized: this server wants its token (Authorization: Bearer TOKEN)"},
		{"another token", "https://" + address, wrong, "", "refused POST /run with 401 Unauthorized: this server wants its token (Authorization: Bearer TOKEN)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			output := filepath.Join(t.TempDir(), "r.jsonl")
			start(t, append([]string{"run", "../../testdata/weather.jsonl", "-o", output, "--limit", "1", "--max-attempts", "1", "--environment", test.url}, test.flags...)...).ends(t, exitPartly)
			var line struct {
				Message  string `json:"_ng_failure_message"`
				Kind     string `json:"failure_kind"`
				Terminal bool   `json:"_ng_failure_terminal"`
			}
			if err := json.Unmarshal([]byte(readText(t, strings.TrimSuffix(output, ".jsonl")+"_failures.jsonl")), &line); err != nil {
				t.Fatal(err)
			}
			if line.Kind != test.kind || line.Terminal != (test.kind == "") || !strings.Contains(line.Message, test.reason) {
				t.Errorf("got %+v, want kind %q: %s", line, test.kind, test.reason)
			}
		})
	}
}

// Who listens for others is told what is missing; on loopback nothing is.
func TestADoorThatIsOpenIsWarnedOf(t *testing.T) {
	const (
		noToken = "no token: whoever reaches it may call it (--auth-token-file)"
		noTLS   = "no TLS: anyone on the way can read and change what is sent (--tls-cert, --tls-key)"
		begins  = "other machines can reach this server, and it has "
	)
	loopback, other, every := net.ParseIP("127.0.0.1"), net.ParseIP("192.0.2.7"), net.IPv4zero
	for _, test := range []struct {
		door door
		ip   net.IP
		want string // "": nothing
	}{
		{door{}, loopback, ""},
		{door{}, net.IPv6loopback, ""},
		{door{}, other, begins + noToken + ", and " + noTLS},
		{door{}, every, begins + noToken + ", and " + noTLS},
		{door{}, net.IPv6unspecified, begins + noToken + ", and " + noTLS},
		{door{token: "t"}, other, begins + noTLS},
		{door{certificate: &tls.Certificate{}}, other, begins + noToken},
		{door{token: "t", certificate: &tls.Certificate{}}, other, ""},
	} {
		var out strings.Builder
		test.door.warn(zerolog.New(&out), &net.TCPAddr{IP: test.ip})
		var line struct{ Level, Message string }
		if out.Len() > 0 {
			if err := json.Unmarshal([]byte(out.String()), &line); err != nil || line.Level != "warn" {
				t.Errorf("logged %s, %v", out.String(), err)
			}
		}
		if diff := cmp.Diff(test.want, line.Message); diff != "" {
			t.Errorf("%v on %s (-want +got):\n%s", test.door, test.ip, diff)
		}
	}
}

// The warning comes with the start, once.
func TestServeForOthersWarns(t *testing.T) {
	p := start(t, "serve", "--listen", "0.0.0.0:0", "--resources", "http://127.0.0.1:1", "--agent", "http://127.0.0.1:1")
	if line := p.awaitLog(t, "listening"); line["tls"] != false || line["auth_token"] != false {
		t.Errorf("the log says %v", line)
	}
	p.awaitLine(t, "other machines can reach this server")
	p.signal(t, os.Interrupt)
	if log := p.ends(t, 0); strings.Count(log, `"level":"warn"`) != 1 {
		t.Errorf("the log has another warning:\n%s", log)
	}
}
