package pool_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/internal/pool"
)

const answerOK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

// listen starts a server that has each of its connections served by a function, which
// gets the connection's number, from 1 on. It returns its address and ends with the test.
func listen(t testing.TB, serve func(conn *net.TCPConn, n int)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu      sync.Mutex
		conns   []net.Conn
		serving sync.WaitGroup
	)
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			n := len(conns)
			mu.Unlock()
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn.(*net.TCPConn), n)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return listener.Addr().String()
}

// newPool is a pool that ends with the test.
func newPool(t testing.TB) *pool.Transport {
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// newRequest is a request with a context that ends with the test, and should it hang.
func newRequest(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// take reads the whole of a reply.
func take(t testing.TB, response *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// readHead reads from a connection up to an empty line.
func readHead(r *bufio.Reader) (string, error) {
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		head.WriteString(line)
		if err != nil || line == "\r\n" {
			return head.String(), err
		}
	}
}

// soon fails a test in which something does not happen.
func soon[T any](t testing.TB, what string, happens <-chan T) T {
	t.Helper()
	select {
	case got := <-happens:
		return got
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: not within 30 s", what)
		panic("unreachable")
	}
}
