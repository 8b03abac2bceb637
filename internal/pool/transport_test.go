package pool_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"example.com/turn/internal/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get makes a request and takes the whole reply.
func get(t *testing.T, transport http.RoundTripper, url string) *http.Response {
	t.Helper()
	client := &http.Client{Transport: transport}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response
}

func TestNoCompressionIsAskedFor(t *testing.T) {
	asked := make(chan []string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Values("Accept-Encoding")
	}))
	t.Cleanup(server.Close)
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	get(t, transport, server.URL)
	if got := <-asked; len(got) > 0 {
		t.Errorf("asked for %q", got)
	}
}

// As many connections as were in use at once stay for the next calls.
func TestEveryConnectionIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 50
		answer := make(chan struct{})
		network := serve(t, func(http.ResponseWriter, *http.Request) { <-answer })
		transport := pool.New()
		var dials atomic.Int64
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			return network.dial(), nil
		}
		for range 2 {
			var calls sync.WaitGroup
			for range callers {
				calls.Go(func() { get(t, transport, "http://weather.internal") })
			}
			synctest.Wait() // all of them are under way
			for range callers {
				answer <- struct{}{}
			}
			calls.Wait()
		}
		if got := dials.Load(); got != callers {
			t.Errorf("%d connections were opened for %d callers", got, callers)
		}
		transport.CloseIdleConnections()
	})
}

// An idle connection is dropped after 15 s, to the moment, and not before.
func TestIdleConnectionIsDroppedAfterFifteenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := serve(t, func(http.ResponseWriter, *http.Request) {})
		transport := pool.New()
		var closedAt time.Time
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return &noted{Conn: network.dial(), closed: func() { closedAt = time.Now() }}, nil
		}
		get(t, transport, "http://weather.internal")
		idle := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := closedAt.Sub(idle); got != 15*time.Second {
			t.Errorf("dropped after %s, want 15s", got)
		}
	})
}

// A pipeNet is a network of net.Pipe connections with one server on it, for a
// synctest bubble, where real sockets do not work.
type pipeNet struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// serve starts the server of a network. It ends with the test.
func serve(t *testing.T, handler http.HandlerFunc) *pipeNet {
	p := &pipeNet{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(p) })
	t.Cleanup(func() {
		_ = server.Close()
		served.Wait()
	})
	return p
}

// dial makes a connection and returns the caller's end.
func (p *pipeNet) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

func (p *pipeNet) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeNet) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipeNet) Addr() net.Addr { return &net.TCPAddr{} }

// noted is a connection whose end is noted.
type noted struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *noted) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
