package httpcall_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

// within bounds what a test waits for. It is far above what anything takes: a
// test that reaches it hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// quick re-sends without a pause that a test would have to wait for.
var quick = retry.Resend{Pause: time.Millisecond}

// never does not send a call again.
var never = retry.Resend{Max: -1}

// newClient makes a client with a pool of its own, which is emptied when the test
// ends. The zero Resend becomes quick.
func newClient(t testing.TB, config httpcall.Config) *httpcall.Client {
	t.Helper()
	if config.Transport == nil {
		transport := pool.New()
		t.Cleanup(transport.CloseIdleConnections)
		config.Transport = transport
	}
	if config.Resend == (retry.Resend{}) {
		config.Resend = quick
	}
	if config.Server == "" {
		config.Server = "resources server weather"
	}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	return httpcall.New(config)
}

func verifyCall(rule retry.Rule) *httpcall.Call {
	return &httpcall.Call{
		Stage: failures.StageVerification,
		What:  "POST /verify",
		Path:  "/verify",
		Rule:  rule,
		Body:  rawjson.Body{[]byte(`{"a":`), []byte(`1}`)},
	}
}

// wantFailure takes the failure out of the error of a call.
func wantFailure(t testing.TB, err error) *failures.Failure {
	t.Helper()
	var failure *failures.Failure
	if !errors.As(err, &failure) {
		t.Fatalf("got %v, want a failure", err)
	}
	return failure
}

// A request is what a rawServer has read.
type request struct {
	At     time.Time
	Method string
	Path   string // with the query
	Host   string
	Header http.Header
	Body   string
}

// A rawServer reads requests and leaves what it says to a function that has the
// connection, so that it can say anything at all. It serves one request a
// connection.
type rawServer struct {
	URL      string
	listener net.Listener
	serving  sync.WaitGroup

	mu       sync.Mutex
	requests []request
}

// serveRaw starts a server on loopback. answer gets the number of the request,
// from 1 on; the connection is closed when it returns.
func serveRaw(t testing.TB, answer func(conn *net.TCPConn, n int)) *rawServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{URL: "http://" + listener.Addr().String(), listener: listener}
	s.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.serving.Go(func() {
				defer func() { _ = conn.Close() }()
				stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
				defer stop()
				if n, ok := s.read(conn); ok {
					answer(conn.(*net.TCPConn), n)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.serving.Wait()
	})
	return s
}

func (s *rawServer) read(conn net.Conn) (n int, ok bool) {
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return 0, false
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request{time.Now(), r.Method, r.URL.RequestURI(), r.Host, r.Header, string(body)})
	return len(s.requests), true
}

func (s *rawServer) Requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func say(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }

// reset has the connection end in a reset instead of an end of file.
func reset(conn *net.TCPConn) { _ = conn.SetLinger(0) }

// answerOK is a whole reply, after which the connection ends.
const answerOK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"

// refusedURL is the URL of a port on which nobody listens.
func refusedURL(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return "http://" + listener.Addr().String()
}

// dialError is the error of a failed dial as package net makes it.
func dialError(errno syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9001}, Err: os.NewSyscallError("connect", errno)}
}

// A pipeNet is a network of net.Pipe connections with one server on it, for tests
// in a synctest bubble, where real sockets do not work.
type pipeNet struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// servePipes starts a server on a network of its own and returns a transport
// that reaches it under any address. dial, when not nil, may refuse a connection:
// it gets the number of the dial, from 1 on.
func servePipes(t testing.TB, handler http.HandlerFunc, dial func(n int) error) *pool.Transport {
	t.Helper()
	network := &pipeNet{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(network) })
	var mu sync.Mutex
	dials := 0
	transport := pool.New()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		mu.Lock()
		dials++
		n := dials
		mu.Unlock()
		if dial != nil {
			if err := dial(n); err != nil {
				return nil, err
			}
		}
		return network.dial(ctx)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		served.Wait()
	})
	return transport
}

func (p *pipeNet) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, dialError(syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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

func (p *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9001} }

// A log is a handler's record of the requests that it got, by time.
type log struct {
	mu sync.Mutex
	at []time.Time
}

func (l *log) add() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Now())
	return len(l.at)
}

func (l *log) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.at)
}

// pauses are the times between one request and the next.
func (l *log) pauses() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var pauses []time.Duration
	for i := 1; i < len(l.at); i++ {
		pauses = append(pauses, l.at[i].Sub(l.at[i-1]))
	}
	return pauses
}

// hangUp ends the connection without a reply.
func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}
