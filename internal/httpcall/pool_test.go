package httpcall_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

// Refused calls, broken ones and re-sends leave the pool alone: 64 callers need 64
// connections, however many calls they make. (The retry library would close all idle
// ones after each call that ends in an error.)
func TestRefusalsOpenNoConnections(t *testing.T) {
	const callers, calls = 64, 50
	for rule, name := range ruleNames {
		t.Run(name, func(t *testing.T) {
			// The first call of each caller waits for those of the others: net/http
			// may open a connection more when one becomes idle while it dials.
			var opened, served atomic.Int64
			all := make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				n := served.Add(1)
				if n == callers {
					close(all)
				}
				if n <= callers {
					<-all
				}
				if n%10 == 0 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				_, _ = w.Write([]byte(`{"detail":"busy"}`))
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			server.Start()
			t.Cleanup(server.Close)
			client := newClient(t, httpcall.Config{URL: server.URL, Resend: retry.Resend{Pause: time.Microsecond}})
			ctx := within(t)
			var refused atomic.Int64
			var running sync.WaitGroup
			for range callers {
				running.Go(func() {
					for range calls {
						if _, err := client.Post(ctx, verifyCall(rule)); err != nil {
							refused.Add(1)
						}
					}
				})
			}
			running.Wait()
			// One that is being made when another becomes free is kept: a few more may be
			// there. Each refusal that cost its connection would be hundreds.
			if opened.Load() > 2*callers {
				t.Errorf("%d connections for %d callers", opened.Load(), callers)
			}
			if rule != retry.Release && refused.Load() != callers*calls/10 {
				t.Errorf("%d of %d calls were refused, want a tenth", refused.Load(), callers*calls)
			}
		})
	}
}

// Concurrent calls through one client do not see each other's replies, trouble or
// cookies.
func TestConcurrentCallsAreIndependent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Set-Cookie", "id="+string(body))
		switch {
		case len(body)%3 == 0:
			w.WriteHeader(http.StatusConflict)
		case len(body)%3 == 1 && r.Header.Get("Cookie") == "":
			conn, _, _ := http.NewResponseController(w).Hijack()
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nSet-Cookie: id=%s\r\nContent-Length: 100\r\n\r\n", body)
			_ = conn.Close()
			return
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	client := newClient(t, httpcall.Config{URL: server.URL})
	ctx := within(t)
	var running sync.WaitGroup
	for n := range 100 {
		running.Go(func() {
			want := fmt.Sprint(n)
			for len(want) < 10+n%3 {
				want = "1" + want
			}
			call := verifyCall(retry.Repeatable)
			call.Body, call.Jar = rawjson.Body{[]byte(want)}, cookies.NewJar(nil)
			body, err := client.Post(ctx, call)
			if refused := len(want)%3 == 0; refused != (err != nil) || !refused && string(body) != want {
				t.Errorf("%s: got %q, %v", want, body, err)
			}
			if call.Jar.Header() != "id="+want {
				t.Errorf("%s: jar %q", want, call.Jar.Header())
			}
		})
	}
	running.Wait()
}

// A server that drops idle connections just as the next call begins: what may be
// repeated always succeeds, and what may not is never delivered twice. (A
// real server drops them after seconds; this one after a fifth of one.)
func TestConnectionDroppedWhileIdle(t *testing.T) {
	const idle = 200 * time.Millisecond
	var mu sync.Mutex
	delivered := map[string]int{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		delivered[string(body)]++
		mu.Unlock()
		_, _ = w.Write([]byte("{}"))
	}))
	server.Config.IdleTimeout = idle
	server.Start()
	t.Cleanup(server.Close)
	ctx := within(t)
	var lost atomic.Int64
	var running sync.WaitGroup
	for pair := range 300 {
		running.Go(func() {
			client := newClient(t, httpcall.Config{URL: server.URL}) // one connection a pair
			for n, rule := range []retry.Rule{retry.Repeatable, []retry.Rule{retry.Once, retry.Repeatable, retry.Release}[pair%3]} {
				call := verifyCall(rule)
				call.Body = rawjson.Body{fmt.Appendf(nil, "%d.%d", pair, n)}
				_, err := client.Post(ctx, call)
				if err != nil && rule != retry.Once {
					t.Errorf("pair %d, %s: %v", pair, ruleNames[rule], err)
				}
				if err != nil {
					lost.Add(1)
					if got := wantFailure(t, err); got.Kind != failures.TransportPeerDrop || got.Terminal {
						t.Errorf("kind %q, terminal %v: %s", got.Kind, got.Terminal, got.Reason)
					}
				}
				time.Sleep(idle*98/100 + time.Duration(pair)*idle*4/100/300)
			}
		})
	}
	running.Wait()
	mu.Lock()
	defer mu.Unlock()
	for pair := range 300 {
		if id := fmt.Sprintf("%d.1", pair); pair%3 == 0 && delivered[id] > 1 {
			t.Errorf("call 4 of pair %d was delivered %d times", pair, delivered[id])
		}
	}
	t.Logf("%d of 100 calls that may not be repeated met a connection that was being dropped", lost.Load())
}
