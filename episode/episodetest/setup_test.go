package episodetest_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/episode/episodetest"
)

// within bounds what a test waits for. It is far above what anything takes.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A behind is the server behind a proxy: it says what it is asked, and remembers it.
type behind struct {
	*httptest.Server
	heard chan heard
}

type heard struct {
	Body   string
	Broken bool // the request ended before its end
}

func newBehind(t *testing.T) *behind {
	b := &behind{heard: make(chan heard, 16)}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		b.heard <- heard{string(body), err != nil}
		if err != nil {
			return
		}
		w.Header().Set("Set-Cookie", "session=1")
		if r.URL.Path == "/chunked" {
			_, _ = io.WriteString(w, "you ")
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "said "+string(body))
	}))
	t.Cleanup(b.Close)
	return b
}

// hears takes what the server was asked, that often.
func (b *behind) hears(t *testing.T, times int) []heard {
	t.Helper()
	var all []heard
	for range times {
		select {
		case h := <-b.heard:
			all = append(all, h)
		case <-within(t).Done():
			t.Fatalf("the server heard %v, want %d calls", all, times)
		}
	}
	select {
	case h := <-b.heard:
		t.Errorf("the server also heard %v", h)
	default:
	}
	return all
}

func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// An answer is what a caller saw.
type answer struct {
	status int
	header http.Header
	body   string
	reused bool // the connection had carried another call
	err    error
}

func post(ctx context.Context, client *http.Client, url, body string) answer {
	var a answer
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { a.reused = info.Reused }})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	response, err := client.Do(request)
	if err != nil {
		a.err = err
		return a
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	a.status, a.header, a.body, a.err = response.StatusCode, response.Header, string(text), err
	return a
}

// A raw server answers every request with the same bytes, and remembers what came. It
// knows a request's end by the text that ends it.
type raw struct {
	url string
	got chan string
}

func newRaw(t *testing.T, requestEnd, reply string, then func(net.Conn)) *raw {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{"http://" + listener.Addr().String(), make(chan string, 16)}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			serving.Go(func() {
				defer stop()
				defer func() { _ = conn.Close() }()
				for from := bufio.NewReader(conn); ; {
					text, err := readUntil(from, requestEnd)
					if err != nil {
						return
					}
					r.got <- text
					_, _ = io.WriteString(conn, reply)
					if then != nil {
						then(conn)
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return r
}

func readUntil(from *bufio.Reader, end string) (string, error) {
	var text strings.Builder
	for !strings.HasSuffix(text.String(), end) {
		b, err := from.ReadByte()
		if err != nil {
			return text.String(), err
		}
		text.WriteByte(b)
	}
	return text.String(), nil
}

// dial connects to a proxy without a client that knows HTTP.
func dial(t *testing.T, p *episodetest.Proxy) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// until waits for what nobody reports.
func until(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for limit := within(t); !happened(); time.Sleep(time.Millisecond) {
		if limit.Err() != nil {
			t.Fatalf("it has not happened: %s", what)
		}
	}
}
