package pool_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// A connection has a next call when nothing is wrong with it: what its server did since
// the last one is found before a byte of the next is sent, so that this comes once and is
// answered.
func TestWhichConnectionsAreUsedAgain(t *testing.T) {
	all := func(response *http.Response) { _, _ = io.Copy(io.Discard, response.Body) }
	some := func(response *http.Response) { _, _ = response.Body.Read(make([]byte, 1)) }
	none := func(*http.Response) {}
	nothing := func(*net.TCPConn) {}
	for _, test := range []struct {
		name  string
		reply string
		read  func(response *http.Response)
		then  func(conn *net.TCPConn) // what the server does when the reply was read
		again bool
	}{
		{"a whole reply", answerOK, all, nothing, true},
		{"no body, and nobody reads it", "HTTP/1.1 204 No Content\r\n\r\n", none, nothing, true},
		{"a body of which only the length is read", answerOK, some, nothing, false},
		{"a body that nobody reads", answerOK, none, nothing, false},
		{"a body that goes on", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", some, nothing, false},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", all, nothing, true},
		{"chunks whose end nobody reads", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", some, nothing, false},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", all, nothing, false},
		{"the server's last", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", all, nothing, false},
		{"another protocol", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", all, nothing, false},
		{"the end", answerOK, all, func(conn *net.TCPConn) { _ = conn.Close() }, false},
		{"half the end", answerOK, all, func(conn *net.TCPConn) { _ = conn.CloseWrite() }, false},
		{"a reset", answerOK, all, func(conn *net.TCPConn) { _ = conn.SetLinger(0); _ = conn.Close() }, false},
		{"another reply behind it", answerOK + answerOK, all, nothing, false},
		{"another reply later", answerOK, all, func(conn *net.TCPConn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
		}, false},
		{"a byte later, and the end", answerOK, all, func(conn *net.TCPConn) {
			_, _ = io.WriteString(conn, "\n")
			_ = conn.Close()
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			read, did := make(chan struct{}), make(chan struct{})
			var calls, conns atomic.Int64
			address := listen(t, func(conn *net.TCPConn, n int) {
				conns.Add(1)
				in := bufio.NewReader(conn)
				if _, err := readHead(in); err != nil {
					return
				}
				calls.Add(1)
				if n == 1 {
					_, _ = io.WriteString(conn, test.reply)
					<-read
					test.then(conn)
					close(did)
				} else {
					_, _ = io.WriteString(conn, answerOK)
				}
				for {
					if _, err := readHead(in); err != nil {
						return
					}
					calls.Add(1)
					_, _ = io.WriteString(conn, answerOK)
				}
			})
			transport := newPool(t)
			response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
			if err != nil {
				t.Fatal(err)
			}
			test.read(response)
			_ = response.Body.Close()
			close(read)
			soon(t, "the server's deed", did)
			response, err = transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
			if got := take(t, response, err); got != "{}" {
				t.Errorf("the next call got %q", got)
			}
			if again := conns.Load() == 1; again != test.again {
				t.Errorf("the connection was used again: %v, want %v", again, test.again)
			}
			if got := calls.Load(); got != 2 {
				t.Errorf("%d requests came, want 2", got)
			}
		})
	}
}

// A call that says that it is the last of its connection is.
func TestTheCallersLastCallOfAConnection(t *testing.T) {
	for name, last := range map[string]func(r *http.Request){
		"by its own field":   func(r *http.Request) { r.Close = true },
		"by one of a header": func(r *http.Request) { r.Header.Set("Connection", "Close") },
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			address := listen(t, func(conn *net.TCPConn, _ int) {
				answerAll(conn) // until the caller hangs up
				close(ended)
			})
			request := newRequest(t, "POST", "http://"+address, nil)
			last(request)
			response, err := newPool(t).RoundTrip(request)
			take(t, response, err)
			soon(t, "the connection's end", ended)
		})
	}
}

// A broken connection takes no more, as it is when it breaks after it was looked at.
type brokenConn struct {
	net.Conn
	broken *atomic.Bool
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.broken.Load() {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	return c.Conn.Write(p)
}

// A call of which an idle connection takes not a byte goes to another one, if its body
// can be had again; else its error says what was wrong with the connection.
func TestACallThatAnIdleConnectionDoesNotTake(t *testing.T) {
	for _, test := range []struct {
		name  string
		body  io.Reader
		again func() (io.ReadCloser, error)
		want  error // nil: it is answered
	}{
		{"no body", nil, nil, nil},
		{"a body that can be had again", strings.NewReader("four"), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("four")), nil }, nil},
		{"a large one", strings.NewReader(strings.Repeat("x", 1<<20)), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("four")), nil }, nil},
		{"a body that cannot", strings.NewReader("four"), nil, syscall.EPIPE},
		{"a body that fails to be had again", strings.NewReader("four"), func() (io.ReadCloser, error) { return nil, errBody }, errBody},
	} {
		t.Run(test.name, func(t *testing.T) {
			var calls atomic.Int64
			address := listen(t, func(conn *net.TCPConn, _ int) {
				in := bufio.NewReader(conn)
				for {
					request, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, request.Body)
					calls.Add(1)
					_, _ = io.WriteString(conn, answerOK)
				}
			})
			transport := newPool(t)
			var broken []*atomic.Bool
			dial := transport.DialContext
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				broken = append(broken, new(atomic.Bool))
				return &brokenConn{conn, broken[len(broken)-1]}, err
			}
			response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
			take(t, response, err)
			broken[0].Store(true)
			request := newRequest(t, "POST", "http://"+address, nil)
			if test.body != nil {
				withBody(request, test.body, 4)
				if size := test.body.(*strings.Reader).Len(); size > 4 {
					request.ContentLength = int64(size)
					test.again = func() (io.ReadCloser, error) {
						return io.NopCloser(strings.NewReader(strings.Repeat("x", size))), nil
					}
				}
				request.GetBody = test.again
			}
			response, err = transport.RoundTrip(request)
			if test.want != nil {
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				return
			}
			take(t, response, err)
			if calls.Load() != 2 || len(broken) != 2 {
				t.Errorf("%d calls came over %d connections, want 2 over 2", calls.Load(), len(broken))
			}
		})
	}
}

// Idle connections can be closed at any time: it ends no call, and none goes to one that
// is closed.
func TestIdleConnectionsAreClosedBesideCalls(t *testing.T) {
	address := listen(t, func(conn *net.TCPConn, _ int) { answerAll(conn) })
	transport := newPool(t)
	done := make(chan struct{})
	var closing, calls sync.WaitGroup
	closing.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				transport.CloseIdleConnections()
			}
		}
	})
	for range 4 {
		calls.Go(func() {
			for range 200 {
				response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, strings.NewReader("four")))
				if err != nil {
					t.Error(err)
					return
				}
				if body, err := io.ReadAll(response.Body); string(body) != "{}" || err != nil {
					t.Errorf("got %q, %v", body, err)
				}
			}
		})
	}
	calls.Wait()
	close(done)
	closing.Wait()
}

// A connection that is in use when the idle ones are closed answers, and is idle then.
func TestAConnectionInUseIsNotIdle(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	address := listen(t, func(conn *net.TCPConn, _ int) {
		_, _ = readHead(bufio.NewReader(conn))
		close(asked)
		<-answer
		_, _ = io.WriteString(conn, answerOK)
		_, _ = io.Copy(io.Discard, conn)
	})
	transport := newPool(t)
	var calls sync.WaitGroup
	calls.Go(func() {
		response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
	})
	soon(t, "the call", asked)
	transport.CloseIdleConnections()
	close(answer)
	calls.Wait()
}

// What a server says to a request that it does not read to its end is the reply, whether
// it hangs up behind it or not, and however large the request is.
func TestAReplyBeforeTheRequestWasRead(t *testing.T) {
	const reply = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\n{}"
	for _, test := range []struct {
		name string
		then func(conn *net.TCPConn, answered <-chan struct{})
	}{
		{"the connection stays", func(_ *net.TCPConn, answered <-chan struct{}) { <-answered }},
		{"the connection ends", func(*net.TCPConn, <-chan struct{}) {}},
		{"half the connection ends", func(conn *net.TCPConn, _ <-chan struct{}) {
			_ = conn.CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		}},
	} {
		for name, body := range map[string]io.Reader{
			"known length":   strings.NewReader(strings.Repeat("x", 8<<20)),
			"unknown length": anything{strings.NewReader(strings.Repeat("x", 8<<20))},
		} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				answered := make(chan struct{})
				address := listen(t, func(conn *net.TCPConn, _ int) {
					_, _ = readHead(bufio.NewReaderSize(conn, 16))
					_, _ = io.WriteString(conn, reply)
					test.then(conn, answered)
				})
				t.Cleanup(func() { close(answered) }) // before that of the server
				response, err := newPool(t).RoundTrip(newRequest(t, "POST", "http://"+address, body))
				if got := take(t, response, err); got != "{}" || response.StatusCode != 413 {
					t.Errorf("got %d %q", response.StatusCode, got)
				}
			})
		}
	}
}
