package httpcall_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

// bodies are what Open of a call has given: each is another one, so that a server's
// record shows which it got.
type bodies struct {
	mu     sync.Mutex
	opened int
	closed sync.WaitGroup
	fail   int // the one that cannot be opened, from 1 on; 0: none
}

var errGone = errors.New("the file is gone")

func (b *bodies) open() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	if b.opened == b.fail {
		return nil, errGone
	}
	b.closed.Add(1)
	return &body{Reader: strings.NewReader(fmt.Sprintf("body %d %s", b.opened, strings.Repeat("x", 100_000))), closed: b.closed.Done}, nil
}

func (b *bodies) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

type body struct {
	io.Reader
	once   sync.Once
	closed func()
}

func (b *body) Close() error {
	b.once.Do(b.closed)
	return nil
}

// got is a record of the requests of a server.
type got struct {
	mu    sync.Mutex
	lines []string
}

func (g *got) add(r *http.Request) (n int) {
	text, _ := io.ReadAll(r.Body)
	first, second, _ := strings.Cut(strings.TrimRight(string(text), "x"), " ")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lines = append(g.lines, fmt.Sprintf("%s %s %v %s %s+%d", r.URL.Path, r.Header.Get("Content-Length"), r.TransferEncoding, first, strings.TrimSpace(second), len(text)))
	return len(g.lines)
}

func (g *got) all() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.lines)
}

// A body that is not held is opened anew for each send: of a call that broke, and of
// one that is sent on. Its length is not announced, and each is closed.
func TestABodyIsOpenedAnewForEachSend(t *testing.T) {
	for _, test := range []struct {
		name   string
		rule   retry.Rule
		answer func(w http.ResponseWriter, n int)
		want   []string
		fails  bool
	}{
		{"one send", retry.Once, func(w http.ResponseWriter, _ int) { write(w, "{}") }, []string{"/metrics  [chunked] body 1+100007"}, false},
		{"a call that breaks twice", retry.Repeatable, func(w http.ResponseWriter, n int) {
			if n < 3 {
				hangUp(w)
				return
			}
			write(w, "{}")
		}, []string{"/metrics  [chunked] body 1+100007", "/metrics  [chunked] body 2+100007", "/metrics  [chunked] body 3+100007"}, false},
		{"a call that is sent on", retry.Once, func(w http.ResponseWriter, n int) {
			if n < 3 {
				w.Header().Set("Location", fmt.Sprintf("/metrics/%d", n))
				w.WriteHeader(http.StatusTemporaryRedirect)
				return
			}
			write(w, "{}")
		}, []string{"/metrics  [chunked] body 1+100007", "/metrics/1  [chunked] body 2+100007", "/metrics/2  [chunked] body 3+100007"}, false},
		{"a call that is not to be sent again", retry.Once, func(w http.ResponseWriter, _ int) { hangUp(w) }, []string{"/metrics  [chunked] body 1+100007"}, true},
		{"a refusal", retry.Repeatable, func(w http.ResponseWriter, _ int) { w.WriteHeader(500) }, []string{"/metrics  [chunked] body 1+100007"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := &got{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { test.answer(w, g.add(r)) }))
			defer server.Close()
			b := &bodies{}
			reply, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), &httpcall.Call{What: "POST /metrics", Path: "/metrics", Rule: test.rule, Open: b.open})
			if (err != nil) != test.fails || !test.fails && string(reply) != "{}" {
				t.Errorf("got %s, %v", reply, err)
			}
			if diff := cmp.Diff(test.want, g.all()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if b.count() != len(test.want) {
				t.Errorf("%d bodies were opened, want %d", b.count(), len(test.want))
			}
			b.closed.Wait() // or the test hangs
		})
	}
}

func write(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

// What could not be opened is the failure, for good, and not the connection's.
func TestABodyThatCannotBeOpened(t *testing.T) {
	for _, fail := range []int{1, 2} {
		t.Run(fmt.Sprint(fail), func(t *testing.T) {
			g := &got{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				g.add(r)
				hangUp(w)
			}))
			defer server.Close()
			b := &bodies{fail: fail}
			_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), &httpcall.Call{
				Stage: failures.StageVerification, What: "POST /metrics", Path: "/metrics", Rule: retry.Repeatable, Open: b.open,
			})
			f := wantFailure(t, err)
			if !errors.Is(f, errGone) || !f.Terminal || f.Stage != failures.StageVerification || !strings.Contains(f.Reason, "the body of POST /metrics: the file is gone") {
				t.Errorf("failure %+v, want that the body could not be opened", f)
			}
			if got := len(g.all()); got != fail-1 || b.count() != fail {
				t.Errorf("%d requests with %d bodies, want %d and %d", got, b.count(), fail-1, fail)
			}
			b.closed.Wait()
		})
	}
}

// A body that breaks is the call's failure, and its words say so.
func TestABodyThatBreaks(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("the server has read a whole body")
		}
	}))
	defer server.Close()
	broken := func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", 10_000)), brokenReader{})), nil
	}
	_, err := newClient(t, httpcall.Config{URL: server.URL, Resend: never}).Post(within(t), &httpcall.Call{What: "POST /metrics", Path: "/metrics", Rule: retry.Once, Open: broken})
	if f := wantFailure(t, err); !errors.Is(f, errGone) || !strings.Contains(f.Reason, "the file is gone") {
		t.Errorf("failure %+v, want that the file is gone", f)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errGone }

// A call whose body is opened finds a connection that its server has closed while
// it was idle, and is sent on another, as one whose body is held.
func TestABodyOnAConnectionThatWasClosedWhileIdle(t *testing.T) {
	g := &got{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.add(r)
		write(w, "{}")
	}))
	conns := make(chan net.Conn, 9)
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateIdle {
			conns <- conn
		}
	}
	server.Start()
	defer server.Close()
	client := newClient(t, httpcall.Config{URL: server.URL})
	b := &bodies{}
	call := &httpcall.Call{What: "POST /metrics", Path: "/metrics", Rule: retry.Repeatable, Open: b.open}
	for range 5 {
		if _, err := client.Post(within(t), call); err != nil {
			t.Fatal(err)
		}
		_ = (<-conns).Close()
	}
	for _, line := range g.all() {
		if !strings.HasSuffix(line, fmt.Sprintf("+%d", len("body 1 ")+100_000)) && !strings.HasSuffix(line, fmt.Sprintf("+%d", len("body 10 ")+100_000)) {
			t.Errorf("the server has got %s", line)
		}
	}
	if got := len(g.all()); got < 5 {
		t.Errorf("%d requests came, want 5", got)
	}
	b.closed.Wait()
}

// Without Open the body is the one that is held, whose length is announced.
func TestAHeldBodyAnnouncesItsLength(t *testing.T) {
	lengths := make(chan int64, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lengths <- r.ContentLength
		write(w, "{}")
	}))
	defer server.Close()
	if _, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), &httpcall.Call{What: "POST /verify", Path: "/verify", Body: rawjson.Body{[]byte("{"), []byte("}")}}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-lengths:
		if got != 2 {
			t.Errorf("its length is %d, want 2", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("no call has come")
	}
}
