package httpcall_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

// A staleConn is one that the server drops while it is idle: the write that comes
// next gets so many bytes out, and then fails.
type staleConn struct {
	net.Conn
	mu    sync.Mutex
	stale bool
	left  int // bytes that go out all the same
}

func (c *staleConn) goStale(left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale, c.left = true, left
}

func (c *staleConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stale {
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:min(c.left, len(p))])
	c.left -= n
	if n == len(p) || err != nil {
		return n, err
	}
	_ = c.Conn.Close()
	return n, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
}

// A call that meets a connection which has gone stale is sent again on a fresh
// one, by net/http itself and at once, as long as not a byte of it went out: it is
// whole, and it came once. After the first byte nobody sends call 4 again, and the
// others are sent by the rule for broken calls.
func TestStaleConnectionIsReplacedUnlessAByteWentOut(t *testing.T) {
	second := rawjson.Body{[]byte(`{"second":"`), bytes.Repeat([]byte("é"), 100_000), []byte(`"}`)}
	const all = 1 << 30
	for _, test := range []struct {
		name      string
		written   int // bytes of the second call that go out on the stale connection; all: its reply is lost
		rule      retry.Rule
		resend    retry.Resend
		answered  bool
		delivered int // how often the second call came whole
		conns     int
	}{
		{"call 4, nothing written", 0, retry.Once, retry.Resend{}, true, 1, 2},
		{"call 4, one byte", 1, retry.Once, retry.Resend{}, false, 0, 1},
		{"call 4, some of its head", 100, retry.Once, retry.Resend{}, false, 0, 1},
		{"call 4, some of its body", 10_000, retry.Once, retry.Resend{}, false, 0, 1},
		{"call 4, all of it", all, retry.Once, retry.Resend{}, false, 1, 1},
		{"a repeatable call, nothing written", 0, retry.Repeatable, never, true, 1, 2},
		{"a repeatable call, one byte", 1, retry.Repeatable, retry.Resend{}, true, 1, 2},
		{"a repeatable call, some of its body", 10_000, retry.Repeatable, retry.Resend{}, true, 1, 2},
		{"a repeatable call, all of it", all, retry.Repeatable, retry.Resend{}, true, 2, 2},
		{"a repeatable call that our rule does not send again", 1, retry.Repeatable, never, false, 0, 1},
		{"a close, nothing written", 0, retry.Release, never, true, 1, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var whole [][]byte // the bodies that came
				transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					mu.Lock()
					whole = append(whole, body)
					n := len(whole)
					mu.Unlock()
					if test.written == all && n == 2 {
						hangUp(w)
						return
					}
					_, _ = w.Write([]byte("{}"))
				}, nil)
				var conns []*staleConn
				dial := transport.DialContext
				transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					if err != nil {
						return nil, err
					}
					stale := &staleConn{Conn: conn}
					mu.Lock()
					defer mu.Unlock()
					conns = append(conns, stale)
					return stale, nil
				}
				client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport, Resend: test.resend})
				if _, err := client.Post(t.Context(), verifyCall(test.rule)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the connection is idle
				conns[0].goStale(test.written)

				call := verifyCall(test.rule)
				call.Body = second
				_, err := client.Post(t.Context(), call)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if test.answered && err != nil {
					t.Error(err)
				}
				if !test.answered {
					if got := wantFailure(t, err); got.Kind != failures.TransportPeerDrop || got.Terminal {
						t.Errorf("kind %q, terminal %v: %s", got.Kind, got.Terminal, got.Reason)
					}
				}
				if len(conns) != test.conns || len(whole) != 1+test.delivered {
					t.Errorf("%d connections, and the call came %d times; want %d and %d", len(conns), len(whole)-1, test.conns, test.delivered)
				}
				for _, body := range whole[1:] {
					if !bytes.Equal(body, second.Bytes()) {
						t.Errorf("the call came with another body, of %d bytes", len(body))
					}
				}
			})
		})
	}
}

// Whatever a transport has read of a call, it can have the body anew, whole.
func TestTransportCanHaveTheBodyAnew(t *testing.T) {
	var got []string
	client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		_, _ = io.ReadFull(r.Body, make([]byte, 3))
		for range 2 {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			text, _ := io.ReadAll(body)
			got = append(got, string(text))
		}
		return nil, io.ErrUnexpectedEOF
	})})
	_, _ = client.Post(within(t), verifyCall(retry.Once))
	if want := []string{`{"a":1}`, `{"a":1}`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// net/http does not send a call again that finds its idle connection closed at the
// very moment that it takes it. Call 4 is, when not a byte of it was written.
func TestACallOfWhichNothingWasWrittenIsSentAgain(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) { say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") })
	for _, test := range []struct {
		name    string
		written string
		sends   int
	}{
		{"nothing", "", 2},
		{"a byte", "P", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			transport := pool.New()
			t.Cleanup(transport.CloseIdleConnections)
			sends := 0
			client := newClient(t, httpcall.Config{URL: server.URL, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				if sends++; sends > 1 {
					return transport.RoundTrip(r)
				}
				conn, err := transport.DialContext(r.Context(), "tcp", r.URL.Host)
				if err != nil {
					return nil, err
				}
				defer func() { _ = conn.Close() }()
				httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{Conn: conn, Reused: true})
				if _, err := io.WriteString(conn, test.written); test.written != "" && err != nil {
					return nil, err
				}
				return nil, errors.New("http: server closed idle connection")
			})})
			_, err := client.Post(within(t), verifyCall(retry.Once))
			if sends != test.sends || (err == nil) != (test.sends > 1) {
				t.Errorf("sent %d times with error %v, want %d times", sends, err, test.sends)
			}
			if err != nil && wantFailure(t, err).Kind != failures.TransportPeerDrop {
				t.Errorf("kind %q, want that the peer dropped it", wantFailure(t, err).Kind)
			}
		})
	}
}
