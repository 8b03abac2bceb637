package resourcesserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"example.com/turn/servers/resourcesserver"
)

// hostile is what every route is asked with, and the status that it answers with; 0: the
// connection may end without an answer. The limit on requests is a mebibyte.
var hostile = []struct {
	name, headers, body, again string
	status                     int
}{
	{"9e18 bytes", "Content-Length: 9000000000000000000\r\n", "", " ", 413},
	{"2 GB", "Content-Length: 2147483648\r\n", "", " ", 413},
	{"less than nothing", "Content-Length: -1\r\n", "", "", 400},
	{"two lengths", "Content-Length: 1\r\nContent-Length: 2\r\n", "{}", "", 400},
	{"chunks without an end", "Transfer-Encoding: chunked\r\n", "", "1000\r\n" + strings.Repeat(" ", 0x1000) + "\r\n", 413},
	{"a chunk of 2^64 bytes", "Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n", "", 400},
	{"trailers without an end", "Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n", "X: y\r\n", 400},
	{"headers without an end", "", "", "", 431},
	{"a zipped bomb", "Content-Encoding: gzip\r\nContent-Length: 4\r\n", "\x1f\x8b\x08\x00", "", 422},
	{"brackets", "Content-Length: 1000000\r\n", strings.Repeat("[", 1_000_000), "", 422},
	{"the same name again and again", "Content-Length: 1000007\r\n", `{"":0` + strings.Repeat(`,"":0`, 200_000) + `,}`, "", 422},
	{"zeros", "Content-Length: 1000000\r\n", strings.Repeat("\x00", 1_000_000), "", 422},
	{"no UTF-8", "Content-Length: 7\r\n", "{\"\xff\":1}", "", 422},
}

// Hostile requests are refused, one after another, and bind nothing.
func TestHostileRequestsAreRefused(t *testing.T) {
	b := newBench(t, resourcesserver.Config{MaxRequestBytes: 1 << 20})
	cookie := b.seed("a")
	for _, path := range []string{"/seed_session", "/verify", "/close_session", "/add"} {
		for _, test := range hostile {
			head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", path)
			first, again := head+test.headers+"\r\n"+test.body, test.again
			if test.headers == "" {
				first, again = head, "X-More: yes\r\n"
			}
			got := statusOf(t, b.url, first, again)
			if got != test.status && (again == "" || got != 0) {
				t.Errorf("%s: %s is answered with %d, want %d", path, test.name, got, test.status)
			}
		}
	}
	b.want("a tool call after it", b.post("/add", cookie, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
	b.wantOpen(1)
}

// The MCP endpoint is no way around: hostile requests get a refusal there too.
func TestHostileRequestsOverMCPAreRefused(t *testing.T) {
	book := &book{}
	server, err := resourcesserver.New(listing(book), resourcesserver.Config{MaxRequestBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	for _, test := range hostile {
		const head = "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
		first, again := head+test.headers+"\r\n"+test.body, test.again
		if test.headers == "" {
			first, again = head, "X-More: yes\r\n"
		}
		if got := statusOf(t, b.url, first, again); got != 0 && (got < 400 || got > 499) {
			t.Errorf("%s is answered with %d, want a refusal", test.name, got)
		}
	}
	b.wantOpen(0)
}

// statusOf is the status that a request gets which is said to the connection, with the
// second text again and again; 0 when the connection ends without one.
func statusOf(t *testing.T, url, first, again string) int {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan struct{})
	defer func() { <-said }()
	defer func() { _ = conn.Close() }()
	go func() {
		defer close(said)
		_, err := io.WriteString(conn, first)
		for again := strings.Repeat(again, 100); again != "" && err == nil; {
			_, err = io.WriteString(conn, again)
		}
	}()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}
