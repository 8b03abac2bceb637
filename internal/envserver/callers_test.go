package envserver_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/httpserve"
	"example.com/turn/internal/scripted"
	"example.com/turn/internal/testcerts"
)

const token = "t0p-s3cret"

func withToken(s *settings) { s.server.Token = token }

// unauthorized is what everybody gets who does not show the token.
const unauthorized = `{"detail":"this server wants its token (Authorization: Bearer TOKEN)"}`

// ask makes a request with those Authorization headers.
func (h *house) ask(t *testing.T, method, path string, authorization []string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), method, h.url+path, strings.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	r.Header["Content-Type"], r.Header["Authorization"] = []string{"application/json"}, authorization
	response, err := h.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Header.Del("Date")
	return reply{response.StatusCode, response.Header, string(text)}
}

func TestOnlyWhoShowsTheTokenMayCall(t *testing.T) {
	h := newHouse(t, withToken)
	for _, test := range []struct {
		name          string
		authorization []string
		in            bool
	}{
		{"the token", []string{"Bearer t0p-s3cret"}, true},
		{"the scheme in small letters", []string{"bearer t0p-s3cret"}, true},
		{"the scheme in capitals", []string{"BEARER t0p-s3cret"}, true},
		{"white space around it", []string{"Bearer   t0p-s3cret "}, true},
		{"none", nil, false},
		{"an empty header", []string{""}, false},
		{"the scheme alone", []string{"Bearer"}, false},
		{"the scheme and a space", []string{"Bearer "}, false},
		{"the token alone", []string{"t0p-s3cret"}, false},
		{"another token", []string{"Bearer t0p-s3creT"}, false},
		{"the beginning of the token", []string{"Bearer t0p-s3cre"}, false},
		{"more than the token", []string{"Bearer t0p-s3cret1"}, false},
		{"two tokens in one", []string{"Bearer t0p-s3cret t0p-s3cret"}, false},
		{"another scheme", []string{"Basic t0p-s3cret"}, false},
		{"another scheme, encoded", []string{"Basic OnQwcC1zM2NyZXQ="}, false},
		{"a scheme that begins so", []string{"Bearer: t0p-s3cret"}, false},
		{"twice", []string{"Bearer t0p-s3cret", "Bearer t0p-s3cret"}, false},
		{"a wrong and a right one", []string{"Bearer wrong", "Bearer t0p-s3cret"}, false},
		{"a right and a wrong one", []string{"Bearer t0p-s3cret", "Bearer wrong"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(nil)
			for _, call := range []struct{ method, path string }{{"POST", "/run"}, {"POST", "/aggregate_metrics"}, {"GET", "/metrics"}} {
				got := h.ask(t, call.method, call.path, test.authorization)
				switch {
				case test.in && got.Status != 200:
					t.Errorf("%s: %d %s", call.path, got.Status, got.Body)
				case !test.in:
					want := reply{401, http.Header{"Content-Type": {"application/json"}, "Www-Authenticate": {"Bearer"}, "Content-Length": {strconv.Itoa(len(unauthorized))}}, unauthorized}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s (-want +got):\n%s", call.path, diff)
					}
				}
			}
			if calls := h.Routes(); !test.in && len(calls) > 0 {
				t.Errorf("calls were made: %v", calls)
			}
		})
	}
	if strings.Contains(h.log.String(), token) {
		t.Errorf("the token is in the log:\n%s", h.log.String())
	}
}

// Probes and load balancers have no token. Whatever else is asked for is refused, be it
// there or not.
func TestWhatIsOpenToAll(t *testing.T) {
	h := newHouse(t, withToken)
	for path, status := range map[string]int{
		"/": 200, "/health": 200, "/healthz": 200, "/livez": 200, "/readyz": 200, "/readyz?verbose=1": 200,
		"/run": 401, "/metrics": 401, "/nothing": 401, "/health/": 401, "/healthz/../metrics": 401, "/readyz/run": 401, "//readyz": 401, "/%2e/run": 401, "/Readyz": 401,
	} {
		if got := h.ask(t, "GET", path, nil); got.Status != status {
			t.Errorf("GET %s: status %d, want %d", path, got.Status, status)
		}
	}
	for _, path := range []string{"/", "/readyz"} {
		if got := h.ask(t, "POST", path, nil); got.Status != 405 {
			t.Errorf("POST %s: status %d, want 405", path, got.Status)
		}
	}
}

func TestWithoutATokenAnyoneMayCall(t *testing.T) {
	h := newHouse(t, nil)
	for _, authorization := range [][]string{nil, {"Bearer anything"}, {"Basic x", "y"}} {
		if got := h.ask(t, "POST", "/run", authorization); got.Status != 200 {
			t.Errorf("%q: status %d", authorization, got.Status)
		}
	}
}

// A stranger's body is not waited for.
func TestARefusedCallersBodyIsNotRead(t *testing.T) {
	h := newHouse(t, withToken)
	response, err := h.raw(t, "POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n")
	if err != nil || response.StatusCode != 401 {
		t.Errorf("got %v, %v", response, err)
	}
}

// overTLS has the house speak TLS, and its client trust it. The client would speak
// HTTP/2 if it could.
func overTLS(t *testing.T, change func(*settings)) *house {
	t.Helper()
	authority := testcerts.NewAuthority(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(s *settings) {
		s.listener = httpserve.OverTLS(listener, authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate)
		if change != nil {
			change(s)
		}
	})
	h.url = strings.Replace(h.url, "http:", "https:", 1)
	transport := h.client.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: authority.Roots()}
	transport.ForceAttemptHTTP2 = true
	return h
}

func TestHTTP1IsSpokenOverTLS(t *testing.T) {
	h := overTLS(t, withToken)
	if got := h.ask(t, "POST", "/run", []string{"Bearer " + token}); got.Status != 200 {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	response, err := h.client.Get(h.url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.ProtoMajor != 1 || response.TLS.NegotiatedProtocol != "http/1.1" {
		t.Errorf("%s was spoken, %q agreed on", response.Proto, response.TLS.NegotiatedProtocol)
	}
}

// TLS before 1.2 is not spoken, and nothing else than TLS.
func TestWhatIsNotSpokenOverTLS(t *testing.T) {
	h := overTLS(t, nil)
	roots := h.client.Transport.(*http.Transport).TLSClientConfig.RootCAs
	address := strings.TrimPrefix(h.url, "https://")
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version})
		if (err == nil) != want {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	h.url = "http://" + address
	got, err := h.call(within(t), http.MethodGet, "/readyz", "", "")
	if err != nil || got.Status != 400 {
		t.Errorf("plain http got %d, %v", got.Status, err)
	}
}

// A caller that goes away is noticed through TLS, its sessions are closed, and it gets
// no empty answer, also when it has closed only its half.
func TestACallerOverTLSThatGoesAway(t *testing.T) {
	for name, leave := range map[string]func(*tls.Conn) error{"whole": (*tls.Conn).Close, "half": (*tls.Conn).CloseWrite} {
		t.Run(name, func(t *testing.T) {
			h := overTLS(t, nil)
			h.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
			conn, err := tls.Dial("tcp", strings.TrimPrefix(h.url, "https://"), h.client.Transport.(*http.Transport).TLSClientConfig)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			r, err := http.NewRequest(http.MethodPost, "/run", strings.NewReader(plain))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "x"
			r.Header.Set("Content-Type", "application/json")
			if err := r.Write(conn); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Wait(within(t), scripted.Responses, 1); err != nil {
				t.Fatal(err)
			}
			if err := leave(conn); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Wait(within(t), scripted.CloseSession, 1); err != nil {
				t.Errorf("calls %v: %v", h.Routes(), err)
			}
			if response, err := http.ReadResponse(bufio.NewReader(conn), r); err == nil {
				t.Errorf("answered with status %d", response.StatusCode)
			}
			h.ends(t)
		})
	}
}

// What is under way over TLS may end within the grace, and is answered.
func TestDrainOverTLS(t *testing.T) {
	h := overTLS(t, func(s *settings) { s.server.Grace = time.Hour })
	gate := make(chan struct{})
	h.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	answered := h.running(within(t), plain)
	if _, err := h.Wait(within(t), scripted.Responses, 1); err != nil {
		t.Fatal(err)
	}
	unused, err := net.Dial("tcp", strings.TrimPrefix(h.url, "https://")) // nor does one without a handshake keep it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unused.Close() }()
	h.stop()
	for status := 200; status == 200; {
		ready, err := h.call(within(t), http.MethodGet, "/readyz", "", "")
		if err != nil {
			t.Fatal(err)
		}
		status = ready.Status
	}
	close(gate)
	if got := open(t, receive(t, answered)); got.Failure != nil {
		t.Errorf("the one under way: %+v", got.Failure)
	}
	began := time.Now()
	h.ends(t)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the end took %s", took)
	}
}
