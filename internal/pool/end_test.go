package pool_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/turn/internal/pool"
)

var errGaveUp = errors.New("the caller gave up")

// A pipe is a transport whose connections are pipes to a function.
func pipe(t *testing.T, serve func(conn net.Conn)) *pool.Transport {
	transport := pool.New()
	var serving sync.WaitGroup
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		serving.Go(func() {
			defer func() { _ = theirs.Close() }()
			serve(theirs)
		})
		return ours, nil
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		serving.Wait()
	})
	return transport
}

// A context that ends, ends its call, wherever this is, with the context's cause; nothing
// is left of it, and the body of the request is closed.
func TestTheEndOfTheContextEndsTheCall(t *testing.T) {
	silent := func(conn net.Conn, _ <-chan struct{}) { _, _ = io.Copy(io.Discard, conn) }
	says := func(text string) func(net.Conn, <-chan struct{}) {
		return func(conn net.Conn, leave <-chan struct{}) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = io.WriteString(conn, text)
			<-leave
		}
	}
	large := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		name  string
		serve func(conn net.Conn, leave <-chan struct{})
		body  string
		size  int64 // 0: no body
		waits bool  // the body is waited for behind that
	}{
		{"nobody answers", silent, "", 0, false},
		{"nobody answers a small body", silent, "four", 4, false},
		{"nobody answers a large body", silent, large, 1 << 20, false},
		{"nobody reads the head", func(_ net.Conn, leave <-chan struct{}) { <-leave }, "", 0, false},
		{"nobody reads the body", func(conn net.Conn, leave <-chan struct{}) {
			_, _ = readHead(bufio.NewReaderSize(conn, 16))
			<-leave
		}, large, 1 << 20, false},
		{"a small body is waited for", silent, "four", 10, true},
		{"a large body is waited for", silent, "four", 1 << 20, true},
		{"a body of unknown length is waited for", silent, "four", -1, true},
		{"the end of a small body is waited for", silent, "four", 4, true},
		{"the head goes on", says("HTTP/1.1 200 OK\r\nContent-"), "", 0, false},
		{"there was a hint", says("HTTP/1.1 103 Early Hints\r\n\r\n"), "", 0, false},
		{"the body goes on", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"), "", 0, false},
		{"the chunks go on", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"), "", 0, false},
		{"the connection goes on", says("HTTP/1.1 200 OK\r\n\r\n{"), "", 0, false},
		{"there is a reply, and the body is waited for", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"), "four", -1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				leave := make(chan struct{})
				transport := pipe(t, func(conn net.Conn) { test.serve(conn, leave) })
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Minute, func() { cancel(errGaveUp) })
				request := newRequest(t, "POST", "http://weather.internal", nil).WithContext(ctx)
				body, feed := newWaiting(test.body, test.waits)
				if test.size != 0 {
					request.Body, request.ContentLength = body, test.size
				}
				began := time.Now()
				response, err := transport.RoundTrip(request)
				if err == nil {
					_, err = io.ReadAll(response.Body)
				}
				if !errors.Is(err, errGaveUp) {
					t.Errorf("got %v, want the context's cause", err)
				}
				if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
					t.Errorf("took %s, want a minute", took)
				}
				close(feed) // what the body was waited for; the sender may take its time for it
				synctest.Wait()
				if got := body.closed.Load(); test.size != 0 && got != 1 {
					t.Errorf("the body was closed %d times", got)
				}
				close(leave)
			})
		})
	}
}

// newWaiting is a body that gives a text, and then waits for the channel to be closed.
func newWaiting(text string, waits bool) (*closable, chan struct{}) {
	feed := make(chan struct{})
	reader := io.Reader(strings.NewReader(text))
	if waits {
		reader = io.MultiReader(reader, waitReader(feed))
	}
	return &closable{Reader: reader}, feed
}

type waitReader <-chan struct{}

func (w waitReader) Read([]byte) (int, error) {
	<-w
	return 0, io.EOF
}

// Not a byte goes out when the context has ended, not even while the connection was made
// by somebody who takes no notice of it.
func TestNothingIsSentWhenTheContextHasEnded(t *testing.T) {
	for name, size := range map[string]int{"no body": 0, "a small body": 4, "a large body": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			for range 50 { // the watch of the context is another goroutine
				ctx, cancel := context.WithCancelCause(t.Context())
				transport := pool.New()
				got := make(chan int64, 1)
				transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go func() {
						n, _ := io.Copy(io.Discard, theirs)
						got <- n
					}()
					cancel(errGaveUp)
					return ours, nil
				}
				request := newRequest(t, "POST", "http://weather.internal", strings.NewReader(strings.Repeat("x", size))).WithContext(ctx)
				if _, err := transport.RoundTrip(request); !errors.Is(err, errGaveUp) {
					t.Fatalf("got %v", err)
				}
				if n := soon(t, "the connection's end", got); n > 0 {
					t.Fatalf("%d bytes were sent", n)
				}
			}
		})
	}
}

// A connection that knows no deadlines is closed in their place.
type timelessConn struct{ net.Conn }

func (timelessConn) SetDeadline(time.Time) error     { return errors.ErrUnsupported }
func (timelessConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

func TestAConnectionWithoutDeadlinesEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := pipe(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return timelessConn{conn}, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := transport.RoundTrip(newRequest(t, "POST", "http://weather.internal", nil).WithContext(ctx))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// A reply that is whole before its request does not wait for this, nor does its reader:
// the connection is given up.
func TestAReplyDoesNotWaitForTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		transport := pipe(t, func(conn net.Conn) {
			go func() { _, _ = io.WriteString(conn, answerOK) }()
			_, _ = io.Copy(io.Discard, conn)
			close(ended)
		})
		body, feed := newWaiting("four", true)
		request := newRequest(t, "POST", "http://weather.internal", nil)
		request.Body, request.ContentLength = body, -1
		began := time.Now()
		response, err := transport.RoundTrip(request)
		if got := take(t, response, err); got != "{}" {
			t.Errorf("got %q", got)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}
		<-ended
		close(feed)
		synctest.Wait()
		if got := body.closed.Load(); got != 1 {
			t.Errorf("the body was closed %d times", got)
		}
	})
}

// Who closes a body has its reader, in another goroutine, read no further, and the call's
// connection and memory go to nobody else meanwhile.
func TestABodyIsClosedWhileItIsRead(t *testing.T) {
	begun := make(chan struct{}, 1)
	address := listen(t, func(conn *net.TCPConn, _ int) {
		_, _ = readHead(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
		begun <- struct{}{}
		_, _ = io.Copy(io.Discard, conn)
	})
	transport := newPool(t)
	for range 20 {
		response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(response.Body)
			read <- err
		}()
		soon(t, "the reply's begin", begun)
		for range 3 {
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := soon(t, "the read's end", read); err == nil {
			t.Error("the reader takes the reply for whole")
		}
		if _, err := response.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("a read behind the close got %v", err)
		}
	}
}

// A Close beside the last Read leaves the connection to the next call, or closes it, and
// never does both.
func TestABodyIsClosedWhileItEnds(t *testing.T) {
	address := listen(t, func(conn *net.TCPConn, _ int) { answerAll(conn) })
	transport := newPool(t)
	for range 300 {
		response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
		if err != nil {
			t.Fatal(err)
		}
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, response.Body) })
		_ = response.Body.Close()
		reading.Wait()
	}
}

// A Close that comes while the last Read waits for the rest of the request to go out ends
// neither this nor the connection.
func TestABodyIsClosedWhileItsRequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := pipe(t, func(conn net.Conn) {
			in := bufio.NewReader(conn)
			request, err := http.ReadRequest(in)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, answerOK)
			if body, err := io.ReadAll(request.Body); string(body) != "four" || err != nil {
				t.Errorf("%q came, %v", body, err)
			}
			_, _ = readHead(in)
			_, _ = io.WriteString(conn, answerOK)
		})
		body, feed := newWaiting("four", true)
		request := newRequest(t, "POST", "http://weather.internal", nil)
		request.Body, request.ContentLength = body, -1
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		var reading sync.WaitGroup
		reading.Go(func() {
			if got, err := io.ReadAll(response.Body); string(got) != "{}" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
		synctest.Wait()
		reading.Go(func() { _ = response.Body.Close() })
		for range 1000 { // time to begin in, and no more: the test holds without it, and shows less
			runtime.Gosched()
		}
		close(feed)
		reading.Wait()

		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("the connection was not kept")
		}
		response, err = transport.RoundTrip(newRequest(t, "POST", "http://weather.internal", nil))
		if got := take(t, response, err); got != "{}" {
			t.Errorf("the next call got %q", got)
		}
	})
}

// listenAndCount starts a server that answers all calls, and counts its connections by
// what is in the channel.
func listenAndCount(t *testing.T) (address string, conns chan int) {
	t.Helper()
	conns = make(chan int, 10)
	return listen(t, func(conn *net.TCPConn, n int) {
		conns <- n
		answerAll(conn)
	}), conns
}

// A body that has ended says so for ever, also when its context has ended or it is closed,
// and has nothing to do with its connection any more.
func TestABodyThatHasEndedStaysSo(t *testing.T) {
	address, conns := listenAndCount(t)
	transport := newPool(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	response, err := transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil).WithContext(ctx))
	take(t, response, err)
	cancel()
	for range 2 {
		if n, err := response.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("got %d, %v", n, err)
		}
		_ = response.Body.Close()
	}
	response, err = transport.RoundTrip(newRequest(t, "POST", "http://"+address, nil))
	take(t, response, err)
	if len(conns) != 1 {
		t.Errorf("%d connections", len(conns))
	}
}

// No call goes out of a context that has ended, not over an idle connection either, which
// stays for the next.
func TestAnIdleConnectionOutlivesACallThatIsNotMade(t *testing.T) {
	address, conns := listenAndCount(t)
	transport := newPool(t)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errGaveUp)
	for _, ctx := range []context.Context{t.Context(), ended, t.Context()} {
		body := &closable{Reader: strings.NewReader("four")}
		request := newRequest(t, "POST", "http://"+address, nil).WithContext(ctx)
		request.Body, request.ContentLength = body, 4
		response, err := transport.RoundTrip(request)
		if ctx == ended {
			if !errors.Is(err, errGaveUp) || body.closed.Load() != 1 {
				t.Errorf("got %v, the body was closed %d times", err, body.closed.Load())
			}
			continue
		}
		take(t, response, err)
	}
	if len(conns) != 1 {
		t.Errorf("%d connections", len(conns))
	}
}

// http.Client's own limit of time is a context as well.
func TestTheLimitOfAClientIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := pipe(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		client := &http.Client{Transport: transport, Timeout: time.Minute}
		_, err := client.Do(newRequest(t, "GET", "http://weather.internal", nil))
		if timeout, ok := errors.AsType[interface {
			error
			Timeout() bool
		}](err); !ok || !timeout.Timeout() {
			t.Errorf("got %v", err)
		}
	})
}
