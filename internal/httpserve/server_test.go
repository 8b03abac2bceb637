package httpserve_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"example.com/turn/internal/httpserve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The end does not wait for a connection that was dialled and never used, and lets
// the request that is under way end.
func TestShutdownWaitsForRequestsAndForNothingElse(t *testing.T) {
	under, end := make(chan struct{}), make(chan struct{})
	server := httpserve.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(under)
		<-end
		w.WriteHeader(http.StatusTeapot)
	}), zerolog.Nop())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	unused, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unused.Close() }()
	status := make(chan int, 1)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + listener.Addr().String())
		if err != nil {
			status <- 0
			return
		}
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	<-under

	down := make(chan error, 1)
	began := time.Now()
	go func() { down <- server.Shutdown(context.Background()) }()
	// The unused connection is closed while the request is still under way.
	_ = unused.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := unused.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the unused connection says %v, want its end", err)
	}
	select {
	case err := <-down:
		t.Errorf("Shutdown returned %v with a request under way", err)
	default:
	}
	close(end)
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the end took %s", took)
	}
	if got := <-status; got != http.StatusTeapot {
		t.Errorf("the request under way got status %d", got)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve returned %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// What net/http has to say goes to the logger, where nobody looks unasked.
func TestMessagesGoToTheLog(t *testing.T) {
	var log strings.Builder
	server := httpserve.New(http.NotFoundHandler(), zerolog.New(&log))
	server.ErrorLog.Print("odd")
	if got := log.String(); !strings.Contains(got, `"level":"debug","message":"odd`) {
		t.Errorf("the log holds %q", got)
	}
}

// A pipes is a listener on net.Pipe, which works in a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	// last, when there is one, arrives as the listener is closed.
	last net.Conn
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

// dial makes a connection and returns the caller's end.
func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
	}
	if conn := p.last; conn != nil {
		time.Sleep(time.Millisecond) // the server has done all that it does about those before it
		p.last = nil
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A connection that is accepted when the others have been closed already is closed
// as well: the end would wait for it to speak.
func TestAConnectionThatComesAsTheListenerClosesIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := newPipes()
		late, theirs := net.Pipe()
		listener.last = theirs
		server := httpserve.New(http.NotFoundHandler(), zerolog.Nop())
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		synctest.Wait()

		began := time.Now()
		down := make(chan time.Duration, 1)
		go func() {
			if err := server.Shutdown(context.Background()); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
			down <- time.Since(began)
		}()
		if _, err := late.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the late connection says %v, want its end", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it was closed after %s", took)
		}
		if took := <-down; took > time.Second {
			t.Errorf("the end took %s", took)
		}
		<-served
	})
}

// Who connects has a minute to say what it wants, head and all. What comes after
// the head may take as long as it takes, and so may the next request on a
// connection that was used.
func TestACallerHasAMinuteToSayWhatItWants(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
	for _, test := range []struct {
		name  string
		say   []string // with ten minutes after each
		after time.Duration
	}{
		{"nothing is said", nil, time.Minute},
		{"half a head", []string{head[:20]}, time.Minute},
		{"all but its end", []string{head[:len(head)-1]}, time.Minute},
		{"a body that takes its time", []string{head + "{", "}"}, 0},
		{"a second request that does", []string{head + "{}", head + "{}"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := newPipes()
				asked := 0
				server := httpserve.New(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if body, err := io.ReadAll(r.Body); err == nil && string(body) == "{}" {
						asked++
					}
				}), zerolog.Nop())
				served := make(chan error, 1)
				go func() { served <- server.Serve(listener) }()
				conn := listener.dial()
				began := time.Now()
				var ended time.Duration
				reading := make(chan struct{})
				go func() {
					defer close(reading)
					_, _ = io.Copy(io.Discard, conn)
					ended = time.Since(began)
				}()
				requests := 0
				for _, text := range test.say {
					_, _ = io.WriteString(conn, text)
					time.Sleep(10 * time.Minute)
					requests += strings.Count(text, "}")
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				select {
				case <-reading:
					if test.after == 0 || ended != test.after {
						t.Errorf("the connection was closed after %s", ended)
					}
				default:
					if test.after != 0 {
						t.Errorf("the connection is open, want it closed after %s", test.after)
					}
				}
				if test.after == 0 && asked != requests {
					t.Errorf("%d whole requests came, want %d", asked, requests)
				}
				_ = server.Close()
				_ = conn.Close()
				<-reading
				<-served
			})
		})
	}
}

// A failing has Accept fail for want of descriptors that often.
type failing struct {
	net.Listener
	times int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.times > 0 {
		f.times--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

// That no connection can be accepted is told once, and the server goes on when one can.
func TestAListenerThatFailsIsToldOfOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	server := httpserve.New(http.NotFoundHandler(), zerolog.Nop())
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(httpserve.Listener(&failing{listener, 3}, zerolog.New(&log)))
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	<-served
	if n := strings.Count(log.String(), "no connection can be accepted"); n != 1 || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "too many open files") {
		t.Errorf("the log has %s", log.String())
	}
}
