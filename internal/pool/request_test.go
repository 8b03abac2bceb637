package pool_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/pool"
)

// anything is a reader of a type that nobody knows the length of.
type anything struct{ io.Reader }

// What is sent is, line by line, what net/http sends, save for the order of the lines and
// net/http's name as the user agent.
func TestTheHeadIsThatOfNetHTTP(t *testing.T) {
	for _, test := range []struct {
		name    string
		request func(r *http.Request)
		want    []string // lines that are the point
	}{
		{"a plain call", func(*http.Request) {}, []string{"POST / HTTP/1.1", "Content-Length: 0"}},
		{"no method", func(r *http.Request) { r.Method = "" }, []string{"GET / HTTP/1.1"}},
		{"a method without a body", func(r *http.Request) { r.Method = "DELETE" }, []string{"DELETE / HTTP/1.1"}},
		{"a path that is escaped, and a query", func(r *http.Request) {
			r.URL.Path, r.URL.RawPath, r.URL.RawQuery = "/a/b é/c", "/a%2Fb%20%C3%A9/c", "x=1&y=%0d"
		}, []string{"POST /a%2Fb%20%C3%A9/c?x=1&y=%0d HTTP/1.1"}},
		{"a path that would break the line", func(r *http.Request) { r.URL.Path = "/a b\r\nX: y" }, []string{"POST /a%20b%0D%0AX:%20y HTTP/1.1"}},
		{"an empty query and a fragment", func(r *http.Request) { r.URL.ForceQuery, r.URL.Fragment = true, "f" }, []string{"POST /? HTTP/1.1"}},
		{"a user", func(r *http.Request) { r.URL.User = url.UserPassword("u", "secret") }, []string{"POST / HTTP/1.1"}},
		{"another host", func(r *http.Request) { r.Host = "weather.internal:80" }, []string{"Host: weather.internal:80"}},
		{"the zone of an address", func(r *http.Request) { r.Host = "[fe80::1%eth0]:9001" }, []string{"Host: [fe80::1]:9001"}},
		{"the zone of an address without a port", func(r *http.Request) { r.Host = "[fe80::1%eth0]" }, []string{"Host: [fe80::1]"}},
		{"an address without a zone", func(r *http.Request) { r.Host = "[::1]:9001" }, []string{"Host: [::1]:9001"}},
		{"fields", func(r *http.Request) {
			r.Header = http.Header{"X-A": {"1", "2"}, "Cookie": {"a=b; c=é"}, "X-Tab": {"a\tb"}, "X-Empty": {""}}
		}, []string{"X-A: 1", "X-A: 2", "Cookie: a=b; c=é"}},
		{"no fields at all", func(r *http.Request) { r.Header = http.Header{} }, nil},
		{"fields that are made of the rest", func(r *http.Request) {
			r.Header = http.Header{"Host": {"evil"}, "Content-Length": {"100"}, "Transfer-Encoding": {"chunked"}, "Trailer": {"X"}}
		}, []string{"Content-Length: 0"}},
		{"the last call of a connection", func(r *http.Request) { r.Close = true }, []string{"Connection: close"}},
		{"the last call of a connection, by its field", func(r *http.Request) { r.Header.Set("Connection", "close") }, []string{"Connection: close"}},
		{"the last call of a connection, said twice", func(r *http.Request) { r.Header.Set("Connection", "close"); r.Close = true }, []string{"Connection: close"}},
		{"a body", func(r *http.Request) { withBody(r, strings.NewReader("four"), 4) }, []string{"Content-Length: 4"}},
		{"a body of a method that has none", func(r *http.Request) { r.Method = "GET"; withBody(r, strings.NewReader("four"), 4) }, []string{"Content-Length: 4"}},
		{"a body of unknown length", func(r *http.Request) { withBody(r, strings.NewReader("four"), -1) }, []string{"Transfer-Encoding: chunked"}},
		{"a body whose length was not said", func(r *http.Request) { withBody(r, strings.NewReader("four"), 0) }, []string{"Transfer-Encoding: chunked"}},
		{"no body", func(r *http.Request) { r.Body = http.NoBody }, []string{"Content-Length: 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			heads := make(chan string, 2)
			address := listen(t, func(conn *net.TCPConn, _ int) {
				head, err := readHead(bufio.NewReader(conn))
				if err != nil {
					t.Errorf("%v after %q", err, head)
				}
				heads <- head
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
			})
			lines := func(transport http.RoundTripper) []string {
				request := newRequest(t, "POST", "http://"+address, nil)
				request.Header.Set("User-Agent", "turn")
				test.request(request)
				if !request.Close && request.Header.Get("User-Agent") == "" {
					request.Header["User-Agent"] = []string{"turn"}
				}
				response, err := transport.RoundTrip(request)
				take(t, response, err)
				lines := strings.Split(strings.TrimSuffix(<-heads, "\r\n\r\n"), "\r\n")
				slices.Sort(lines[1:])
				return lines
			}
			theirs := &http.Transport{DisableCompression: true}
			defer theirs.CloseIdleConnections()
			got := lines(newPool(t))
			if diff := cmp.Diff(lines(theirs), got); diff != "" {
				t.Errorf("-net/http +ours:\n%s", diff)
			}
			for _, want := range test.want {
				if !slices.Contains(got, want) {
					t.Errorf("%q, want %q among them", got, want)
				}
			}
		})
	}
}

func withBody(r *http.Request, body io.Reader, length int64) {
	r.Body, r.ContentLength = io.NopCloser(body), length
}

// What could not be sent as it is meant is refused before anybody is called, with its
// body closed, as by net/http.
func TestWhatCannotBeSentIsRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		request func(r *http.Request)
		lenient bool // net/http sends something all the same
	}{
		{"no URL", func(r *http.Request) { r.URL = nil }, false},
		{"another scheme", func(r *http.Request) { r.URL.Scheme = "ftp" }, false},
		{"no host", func(r *http.Request) { r.URL.Host = "" }, false},
		{"a host that breaks the line", func(r *http.Request) { r.Host = "a\r\nX: y" }, true},
		{"a host with a blank", func(r *http.Request) { r.Host = "a b" }, true},
		{"a host of the URL that breaks the line", func(r *http.Request) { r.URL.Host += "\r\nX: y" }, false},
		{"a host that is not of ASCII", func(r *http.Request) { r.Host = "bücher.example" }, true},
		{"a method of two words", func(r *http.Request) { r.Method = "POST /x" }, false},
		{"a method that breaks the line", func(r *http.Request) { r.Method = "POST\r\n" }, false},
		{"a query that breaks the line", func(r *http.Request) { r.URL.RawQuery = "a\r\nX: y" }, false},
		{"an opaque URL that breaks the line", func(r *http.Request) { r.URL.Opaque = "/a\nX: y" }, false},
		{"a field without a name", func(r *http.Request) { r.Header[""] = []string{"x"} }, false},
		{"a field whose name breaks the line", func(r *http.Request) { r.Header["A\r\nB"] = []string{"x"} }, false},
		{"a field whose name has a colon", func(r *http.Request) { r.Header["A:B"] = []string{"x"} }, false},
		{"a field whose name is not of ASCII", func(r *http.Request) { r.Header["É"] = []string{"x"} }, false},
		{"a value that breaks the line", func(r *http.Request) { r.Header["A"] = []string{"x\r\nB: y"} }, false},
		{"a value with the end of a line", func(r *http.Request) { r.Header["A"] = []string{"x\n"} }, false},
		{"a value with a zero", func(r *http.Request) { r.Header["A"] = []string{"x\x00"} }, false},
		{"a value with another control character", func(r *http.Request) { r.Header["A"] = []string{"x\x7f"} }, false},
		{"a length without a body", func(r *http.Request) { r.Body, r.ContentLength = nil, 5 }, false},
		{"trailers", func(r *http.Request) { r.Trailer = http.Header{"X": {"y"}} }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var called atomic.Int64
			address := listen(t, func(conn *net.TCPConn, _ int) {
				n, _ := conn.Read(make([]byte, 1))
				called.Add(int64(n))
			})
			transports := map[string]http.RoundTripper{"ours": newPool(t)}
			if !test.lenient {
				theirs := &http.Transport{}
				defer theirs.CloseIdleConnections()
				transports["net/http"] = theirs
			}
			for name, transport := range transports {
				body := &closable{Reader: strings.NewReader("four")}
				request := newRequest(t, "POST", "http://"+address, nil)
				request.Body, request.ContentLength = body, 4
				test.request(request)
				if _, err := transport.RoundTrip(request); err == nil {
					t.Errorf("%s sent it", name)
				} else if name == "ours" && strings.ContainsAny(err.Error(), "\r\n\x00") {
					t.Errorf("%s quotes what breaks lines: %q", name, err)
				}
				if request.Body != nil && body.closed.Load() == 0 {
					t.Errorf("%s left the body open", name)
				}
			}
			if called.Load() > 0 {
				t.Error("a byte was sent")
			}
		})
	}
}

// A closable body counts how often it is closed.
type closable struct {
	io.Reader
	closed atomic.Int64
}

func (c *closable) Close() error {
	c.closed.Add(1)
	return nil
}

var errBody = errors.New("the disk is gone")

// failing gives a text and then an error.
func failing(text string) io.Reader {
	return io.MultiReader(strings.NewReader(text), errorReader{})
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errBody }

// A body that is not what the request says makes an error of the call, and of no server's
// a request that it takes for whole. It is closed, once, and its connection has no
// further call.
func TestABodyThatIsNotAsSaid(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	for _, test := range []struct {
		name   string
		body   func() io.Reader
		length int64
		want   error // nil: any
		whole  bool  // there is nothing by which the server could tell
	}{
		{"small, fails at once", func() io.Reader { return failing("") }, 10, errBody, false},
		{"small, fails later", func() io.Reader { return failing("four") }, 10, errBody, false},
		{"small, too short", func() io.Reader { return strings.NewReader("four") }, 10, nil, false},
		{"small, empty", func() io.Reader { return strings.NewReader("") }, 10, nil, false},
		{"small, too long", func() io.Reader { return strings.NewReader("fourteen") }, 4, nil, true},
		{"large, fails at once", func() io.Reader { return failing("") }, 200 << 10, errBody, false},
		{"large, fails later", func() io.Reader { return failing(large) }, 200 << 10, errBody, false},
		{"large, too short", func() io.Reader { return strings.NewReader(large) }, 200 << 10, nil, false},
		{"large, too long", func() io.Reader { return anything{strings.NewReader(large + large)} }, 100 << 10, nil, true},
		{"of unknown length, fails at once", func() io.Reader { return failing("") }, -1, errBody, false},
		{"of unknown length, fails later", func() io.Reader { return failing(large) }, -1, errBody, false},
	} {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, there again %v", test.name, again), func(t *testing.T) {
				whole := make(chan bool, 1)
				address := listen(t, func(conn *net.TCPConn, _ int) {
					request, err := http.ReadRequest(bufio.NewReader(conn))
					if err == nil {
						_, err = io.Copy(io.Discard, request.Body)
					}
					whole <- err == nil
					_, _ = io.Copy(io.Discard, conn) // no reply
				})
				body := &closable{Reader: test.body()}
				request := newRequest(t, "POST", "http://"+address, nil)
				request.Body, request.ContentLength = body, test.length
				if again {
					request.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("nobody asks") }
				}
				_, err := newPool(t).RoundTrip(request)
				if err == nil || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if soon(t, "the server's end", whole) && !test.whole {
					t.Error("the server takes the request for whole")
				}
				if got := body.closed.Load(); got != 1 {
					t.Errorf("the body was closed %d times", got)
				}
			})
		}
	}
}

// A body comes as it is, whatever its size and what is known of it.
func TestABodyComesWhole(t *testing.T) {
	bodies := make(chan []byte, 1)
	address := listen(t, func(conn *net.TCPConn, _ int) {
		in := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(request.Body)
			if err != nil {
				t.Error(err)
			}
			bodies <- body
			_, _ = io.WriteString(conn, answerOK)
		}
	})
	transport := newPool(t)
	for _, size := range []int{0, 1, 16<<10 - 1, 16 << 10, 16<<10 + 1, 1 << 20} {
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		for name, reader := range map[string]io.Reader{
			"known and there again": bytes.NewReader(body),
			"unknown":               anything{bytes.NewReader(body)},
		} {
			request := newRequest(t, "POST", "http://"+address, reader)
			response, err := transport.RoundTrip(request)
			if got := take(t, response, err); got != "{}" {
				t.Errorf("the reply is %q", got)
			}
			if got := <-bodies; !bytes.Equal(got, body) {
				t.Errorf("%s: %d bytes came of %d", name, len(got), size)
			}
		}
		request := newRequest(t, "POST", "http://"+address, nil)
		if size > 0 {
			withBody(request, bytes.NewReader(body), int64(size))
		}
		response, err := transport.RoundTrip(request)
		take(t, response, err)
		if got := <-bodies; !bytes.Equal(got, body) {
			t.Errorf("known and not there again: %d bytes came of %d", len(got), size)
		}
	}
}

// The zero value makes calls, and keeps the connection.
func TestTheZeroValueWorks(t *testing.T) {
	var conns atomic.Int64
	address := listen(t, func(conn *net.TCPConn, _ int) {
		conns.Add(1)
		answerAll(conn)
	})
	var transport pool.Transport
	t.Cleanup(transport.CloseIdleConnections)
	for range 2 {
		response, err := transport.RoundTrip(newRequest(t, "GET", "http://"+address, nil))
		take(t, response, err)
	}
	if got := conns.Load(); got != 1 {
		t.Errorf("%d connections", got)
	}
}

// answerAll answers what comes on a connection until it ends.
func answerAll(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		_, _ = io.WriteString(conn, answerOK)
	}
}
