package httpcall_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

func TestEveryStatusFrom200To299IsASuccess(t *testing.T) {
	for _, status := range []int{200, 201, 202, 204, 206, 226, 299} {
		want := fmt.Sprintf(`{"status":%d}`, status)
		if status == 204 {
			want = ""
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, want)
		}))
		t.Cleanup(server.Close)
		body, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Once))
		if err != nil || string(body) != want {
			t.Errorf("%d: got %q, %v", status, body, err)
		}
	}
}

// What else a server may do and still answer: announce its reply, end it with the
// connection, send it in chunks, or refuse before it has read the call.
func TestUnusualRepliesAreReplies(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"HTTP/1.0":             {"HTTP/1.0 200 OK\r\n\r\n{}", "{}"},
		"to the end":           {"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", "{}"},
		"chunks and trailers":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nX-Sum: 1\r\n\r\n", "{}"},
		"hints before":         {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + answerOK, "{}"},
		"no reason phrase":     {"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}", "{}"},
		"more than its length": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}{}", "{}"},
	} {
		server := serveRaw(t, func(conn *net.TCPConn, _ int) { say(conn, test.text) })
		body, err := newClient(t, httpcall.Config{URL: server.URL, Resend: never}).Post(within(t), verifyCall(retry.Once))
		if err != nil || string(body) != test.want {
			t.Errorf("%s: got %q, %v", name, body, err)
		}
	}
}

// A server that refuses a large body without reading it is heard all the same.
func TestEarlyRefusalIsHeard(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served, heard := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Read(make([]byte, 1))
		say(conn, "HTTP/1.1 413 Too Large\r\nContent-Type: text/plain\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large")
		<-heard
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-served
	})
	defer close(heard)
	call := verifyCall(retry.Repeatable)
	call.Body = rawjson.Body{bytes.Repeat([]byte(" "), 64<<20)}
	_, err = newClient(t, httpcall.Config{URL: "http://" + listener.Addr().String()}).Post(within(t), call)
	if got := wantFailure(t, err); got.Status != 413 || !got.Terminal || !strings.Contains(got.Reason, "too large") {
		t.Errorf("got %+v", got)
	}
}

// A reply may be as large as its limit and not a byte larger, whether it says how
// large it is or not. That it is too large is no reason to ask for it again.
func TestReplyIsBounded(t *testing.T) {
	const limit = 100_000
	for _, announced := range []bool{true, false} {
		for _, size := range []int{0, 1, 511, 512, 513, limit - 1, limit, limit + 1, 3 * limit} {
			t.Run(fmt.Sprintf("%d announced %v", size, announced), func(t *testing.T) {
				requests := 0
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					requests++
					_, _ = io.ReadAll(r.Body)
					if announced {
						w.Header().Set("Content-Length", strconv.Itoa(size))
					}
					_ = http.NewResponseController(w).Flush()
					_, _ = w.Write(bytes.Repeat([]byte("x"), size))
				}))
				t.Cleanup(server.Close)
				body, err := newClient(t, httpcall.Config{URL: server.URL, MaxReplyBytes: limit}).Post(within(t), verifyCall(retry.Repeatable))
				if size <= limit {
					if err != nil || len(body) != size {
						t.Errorf("got %d bytes, %v", len(body), err)
					}
					return
				}
				got := wantFailure(t, err)
				if !got.Terminal || got.Kind != "" || !strings.Contains(got.Reason, "limit of 100000 bytes") {
					t.Errorf("terminal %v, kind %q: %s", got.Terminal, got.Kind, got.Reason)
				}
				if requests != 1 {
					t.Errorf("sent %d times", requests)
				}
			})
		}
	}
}

// A reply without an end is given up as soon as it has passed its limit.
func TestEndlessReplyIsGivenUp(t *testing.T) {
	for status, want := range map[int]int{200: 0, 500: 500} { // a refusal keeps its status
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat("all work and no play ", 1000)); err != nil {
					return
				}
			}
		}))
		t.Cleanup(server.Close)
		_, err := newClient(t, httpcall.Config{URL: server.URL, MaxReplyBytes: 1 << 20}).Post(within(t), verifyCall(retry.Repeatable))
		if got := wantFailure(t, err); got.Terminal != (status == 200) || got.Status != want {
			t.Errorf("%d: terminal %v, status %d: %.200s", status, got.Terminal, got.Status, got.Reason)
		}
	}
}

// A server that announces more than it has does not get memory for it.
func TestAnnouncedLengthIsNotBelieved(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) {
		say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n{")
	})
	client := newClient(t, httpcall.Config{URL: server.URL, Resend: never})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := client.Post(within(t), verifyCall(retry.Repeatable))
	runtime.ReadMemStats(&after)
	wantFailure(t, err)
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("the call took %d MB", took>>20)
	}
}

// The words of a refusal are read, bounded, whatever it is.
func TestRefusalIsReadAndBounded(t *testing.T) {
	for _, test := range []struct {
		name, contentType, body string
		want                    string
	}{
		{"JSON", "application/json", `{"detail":"no free GPU"}`, "resources server weather refused POST /verify with 503 Service Unavailable: no free GPU"},
		{"JSON behind an echo of the request", "application/json", `{"input":"` + strings.Repeat("x", 12<<20) + `","detail":"no free GPU"}`, "503 Service Unavailable: no free GPU"},
		{"a problem behind one", "application/problem+json", `{"input":"` + strings.Repeat("x", 12<<20) + `","detail":"no free GPU"}`, "503 Service Unavailable: no free GPU"},
		{"JSON of no type behind one", "", `{"input":"` + strings.Repeat("x", 12<<20) + `","detail":"no free GPU"}`, "503 Service Unavailable: no free GPU"},
		{"text", "text/plain", "upstream connect error", "503 Service Unavailable: upstream connect error"},
		{"HTML", "text/html", "<html><head><title>503</title></head><body><h1>Busy</h1></body></html>", "503 Service Unavailable: Busy"},
		{"nothing", "", "", "503 Service Unavailable: Service Unavailable"},
		{"long text", "text/plain", strings.Repeat("é", 5<<20), "503 Service Unavailable: éééé"},
		{"bytes", "application/octet-stream", "\xff\xfe\x00\x01", "503 Service Unavailable: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				w.Header()["Content-Type"] = []string{test.contentType}
				w.WriteHeader(503)
				_, _ = io.WriteString(w, test.body)
			}))
			t.Cleanup(server.Close)
			_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Repeatable))
			got := wantFailure(t, err)
			if !strings.Contains(got.Reason, test.want) || utf8.RuneCountInString(got.Reason) > failures.MaxReason || !utf8.ValidString(got.Reason) {
				t.Errorf("reason of %d characters: %.300q, want %q in it", utf8.RuneCountInString(got.Reason), got.Reason, test.want)
			}
			if got.Kind != failures.VerifierError || got.Err != nil {
				t.Errorf("kind %q, error %v", got.Kind, got.Err)
			}
		})
	}
}

// Compression is not asked for; a reply that is compressed all the same cannot be
// passed on.
func TestCompressedReplyIsRefused(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write([]byte(`{"detail":"no free GPU"}`))
	_ = w.Close()
	for _, test := range []struct {
		encoding string
		status   int
		body     string
		terminal bool
		want     string // "": a success
	}{
		{"gzip", 200, zipped.String(), true, "it is encoded (gzip), which was not asked for"},
		{"br", 200, "\x0b\x02\x80{}\x03", true, "it is encoded (br)"},
		{"identity", 200, "{}", false, ""},
		{"Identity", 200, "{}", false, ""},
		{"", 200, "{}", false, ""},
		{"gzip", 503, zipped.String(), false, "503 Service Unavailable: Service Unavailable"},
		{"identity", 503, `{"detail":"no free GPU"}`, false, "no free GPU"},
	} {
		t.Run(fmt.Sprint(test.encoding, " ", test.status), func(t *testing.T) {
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				if accepted := r.Header.Values("Accept-Encoding"); len(accepted) > 0 {
					t.Errorf("asked for %q", accepted)
				}
				w.Header().Set("Content-Encoding", test.encoding)
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			t.Cleanup(server.Close)
			body, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Repeatable))
			if test.want == "" {
				if err != nil || string(body) != test.body {
					t.Errorf("got %q, %v", body, err)
				}
				return
			}
			got := wantFailure(t, err)
			if got.Terminal != test.terminal || !strings.Contains(got.Reason, test.want) || requests != 1 {
				t.Errorf("terminal %v after %d requests: %q", got.Terminal, requests, got.Reason)
			}
		})
	}
}

// Retry-After comes in two forms and as nonsense.
func TestRetryAfterIsRead(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		header string
		want   time.Duration
	}{
		{"", 0},
		{"0", 0},
		{"7", 7 * time.Second},
		{" 7 ", 7 * time.Second},
		{"1.5", 1500 * time.Millisecond},
		{now.Add(90 * time.Second).Format(http.TimeFormat), 90 * time.Second},
		{now.Add(90 * time.Second).Format("Monday, 02-Jan-06 15:04:05 GMT"), 90 * time.Second},
		{now.Add(-time.Hour).Format(http.TimeFormat), 0},
		{now.Add(48 * time.Hour).Format(http.TimeFormat), 10 * time.Minute},
		{"-5", 0},
		{"abc", 0},
		{"1e9", 0},
		{"NaN", 0},
		{"0x10", 0},
		{"5 seconds", 0},
		{"999999999", 10 * time.Minute},
		{strings.Repeat("9", 400), 10 * time.Minute},
		{"...", 0},
	} {
		for _, status := range []int{429, 503, 422} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", test.header)
				w.WriteHeader(status)
			}))
			client := newClient(t, httpcall.Config{URL: server.URL, Clock: func() time.Time { return now }})
			_, err := client.Post(within(t), verifyCall(retry.Repeatable))
			if got := wantFailure(t, err); got.RetryAfter != test.want {
				t.Errorf("%q with %d: %s, want %s", test.header, status, got.RetryAfter, test.want)
			}
			server.Close()
		}
	}
}

// Forward returns what came, except that a refusal which does not blame the request
// is a failure, as it is elsewhere.
func TestForwardReturnsRepliesThatAreTheCallersBusiness(t *testing.T) {
	for status, failed := range map[int]bool{200: false, 204: false, 299: false, 302: true, 400: false, 404: false, 422: false, 429: false, 499: false, 500: true, 503: true, 600: true} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header()["Content-Encoding"] = []string{"identity", "identity"}
			w.WriteHeader(status)
			if status != 204 {
				_, _ = io.WriteString(w, `{"detail":1.0}`)
			}
		}))
		t.Cleanup(server.Close)
		reply, err := newClient(t, httpcall.Config{URL: server.URL}).Forward(within(t), verifyCall(retry.Repeatable))
		if failed {
			if got := wantFailure(t, err); got.Status != status {
				t.Errorf("%d: got %+v", status, got)
			}
			continue
		}
		want := httpcall.Reply{Status: status, ContentType: "application/problem+json", ContentEncoding: "identity, identity", Body: []byte(`{"detail":1.0}`)}
		if status == 204 {
			want.Body = []byte{}
		}
		if diff := cmp.Diff(want, reply); err != nil || diff != "" {
			t.Errorf("%d: %v (-want +got):\n%s", status, err, diff)
		}
	}
	_, err := newClient(t, httpcall.Config{URL: refusedURL(t), Resend: never}).Forward(within(t), verifyCall(retry.Repeatable))
	if got := wantFailure(t, err); got.Kind != failures.TransportUnreachable {
		t.Errorf("kind %q", got.Kind)
	}
}

// A reply that switches protocols is none: what follows is the connection itself,
// which may never end.
func TestASwitchOfProtocolsIsNotWaitedFor(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) {
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1)) // until it is closed
	})
	client := newClient(t, httpcall.Config{URL: server.URL})
	_, err := client.Post(within(t), verifyCall(retry.Repeatable))
	f := wantFailure(t, err)
	if !f.Terminal || !strings.Contains(f.Reason, "switches protocols (101)") || len(server.Requests()) != 1 {
		t.Errorf("got %+v after %d requests, want a terminal failure after one", f, len(server.Requests()))
	}
}

// The body of a success that is not looked at may be anything.
func TestABodyThatIsNotLookedAt(t *testing.T) {
	for name, reply := range map[string]string{
		"encoded":   "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx",
		"too large": "Content-Length: 20\r\n\r\n01234567890123456789",
		"no JSON":   "Content-Length: 1\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			server := serveRaw(t, func(conn *net.TCPConn, _ int) { _, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+reply) })
			call := verifyCall(retry.Release)
			call.NoReply = true
			if _, err := newClient(t, httpcall.Config{URL: server.URL, MaxReplyBytes: 10}).Post(within(t), call); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of a refusal no more is read than of a reply, however much there is. What is
// forwarded is bounded likewise.
func TestNoMoreOfARefusalIsReadThanOfAReply(t *testing.T) {
	const there, limit = 8 << 20, 2 << 20
	for _, test := range []struct {
		name    string
		status  int
		forward bool
		most    int64
	}{
		{"a refusal", 422, false, limit},
		{"one that may pass", 503, false, limit},
		{"a forwarded one that does not blame the request", 503, true, limit},
		{"a forwarded one that does", 422, true, limit + limit/4}, // and what shows that there is more
	} {
		t.Run(test.name, func(t *testing.T) {
			body := &counted{Reader: io.LimitReader(endless{}, there)}
			client := newClient(t, httpcall.Config{URL: "http://weather.internal", MaxReplyBytes: limit, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				_, _ = io.ReadAll(r.Body)
				return &http.Response{StatusCode: test.status, Header: http.Header{}, ContentLength: -1, Body: body}, nil
			})})
			var err error
			if test.forward {
				_, err = client.Forward(within(t), verifyCall(retry.Repeatable))
			} else {
				_, err = client.Post(within(t), verifyCall(retry.Repeatable))
			}
			wantFailure(t, err)
			if body.n > test.most || !body.closed {
				t.Errorf("%d bytes were read, want no more than %d; closed: %v", body.n, test.most, body.closed)
			}
		})
	}
}

// What a refusal says of its own length gets it no memory beyond what is read of it.
func TestARefusalsLengthIsNotTakenForGranted(t *testing.T) {
	const limit = 1 << 20
	client := newClient(t, httpcall.Config{URL: "http://weather.internal", MaxReplyBytes: limit, Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 422, Header: http.Header{}, ContentLength: 1 << 30, Body: io.NopCloser(strings.NewReader("no"))}, nil
	})})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := client.Post(within(t), verifyCall(retry.Once))
	runtime.ReadMemStats(&after)
	wantFailure(t, err)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4*limit {
		t.Errorf("it took %d bytes of memory, want little more than %d", took, limit)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// counted is a body that knows how much was read of it.
type counted struct {
	io.Reader
	n      int64
	closed bool
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counted) Close() error {
	c.closed = true
	return nil
}

func TestReadAll(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(io.ErrUnexpectedEOF))
	for _, test := range []struct {
		name             string
		reader           io.Reader
		announced, limit int64
		want             string
		err              error
	}{
		{"all", strings.NewReader("abcdef"), -1, 100, "abcdef", nil},
		{"announced", strings.NewReader("abcdef"), 6, 6, "abcdef", nil},
		{"byte by byte", iotest.OneByteReader(strings.NewReader("abcdef")), 6, 6, "abcdef", nil},
		{"data with the end", iotest.DataErrReader(strings.NewReader("abcdef")), -1, 6, "abcdef", nil},
		{"more than announced", strings.NewReader("abcdef"), 2, 6, "abcdef", nil},
		{"too much announced", strings.NewReader(""), 7, 6, "", httpcall.ErrTooLarge},
		{"too much", strings.NewReader("abcdefg"), -1, 6, "", httpcall.ErrTooLarge},
		{"nothing", strings.NewReader(""), 0, 0, "", nil},
		{"broken", broken, 6, 6, "", io.ErrUnexpectedEOF},
		// An end that came wrapped is an error of whoever wrapped it.
		{"an error about an end", io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(fmt.Errorf("tunnel: %w", io.EOF))), -1, 6, "", io.EOF},
	} {
		got, err := httpcall.ReadAll(test.reader, test.announced, test.limit)
		if string(got) != test.want || (test.err == nil) != (err == nil) || test.err != nil && !strings.Contains(err.Error(), test.err.Error()) {
			t.Errorf("%s: got %q, %v; want %q, %v", test.name, got, err, test.want, test.err)
		}
	}
}

// A body of any length is read whole, and takes the memory of two of it at most: once
// where its length is known and believed.
func TestWhatReadAllTakes(t *testing.T) {
	const mebibyte = 1 << 20
	for _, test := range []struct {
		size, announced int64
		most            float64 // times its size
	}{
		{5 * mebibyte, 5 * mebibyte, 1.01},
		{5 * mebibyte, -1, 2.2},
		{20 * mebibyte, -1, 2.2},
		{20 * mebibyte, 20 * mebibyte, 2.2},
		{mebibyte + 1, mebibyte, 2.2},
	} {
		text := bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz"), int(test.size)/36+1)[:test.size]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := httpcall.ReadAll(bytes.NewReader(text), test.announced, test.size)
		runtime.ReadMemStats(&after)
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d bytes, %d announced: got %d, %v", test.size, test.announced, len(got), err)
		}
		if taken := float64(after.TotalAlloc-before.TotalAlloc) / float64(test.size); taken > test.most {
			t.Errorf("%d bytes, %d announced: %.2f times their memory was taken, want %.2f at most", test.size, test.announced, taken, test.most)
		}
	}
}
