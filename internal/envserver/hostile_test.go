package envserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"example.com/turn/internal/scripted"
)

// answersTo is the status that a request gets, 0 when the connection ends without one.
// The rest of the request is sent until the server has heard enough.
func answersTo(t *testing.T, h *house, first, again string) (status int) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(within(t), "tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		_, err := io.WriteString(conn, first)
		for again := strings.Repeat(again, 1000); again != "" && err == nil; {
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

// A request that is hostile is refused, opens no session, and leaves the server as it
// was.
func TestAHostileRequestToRun(t *testing.T) {
	h := newHouse(t, nil)
	const head = "POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	whole := func(headers, body string) string {
		return fmt.Sprintf("%s%sContent-Length: %d\r\n\r\n%s", head, headers, len(body), body)
	}
	for _, test := range []struct {
		name, first, again string
		status             int // 0: the connection ends without an answer
	}{
		{"9e18 bytes", head + "Content-Length: 9000000000000000000\r\n\r\n", "", 413},
		{"2 GB", head + "Content-Length: 2147483648\r\n\r\n", "", 413},
		{"less than nothing", head + "Content-Length: -1\r\n\r\n", "", 400},
		{"two lengths", head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12", "", 400},
		{"a length and chunks of 2^64 bytes", head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "", 400},
		{"a chunk's name without an end", head + "Transfer-Encoding: chunked\r\n\r\n1;", "x", 400},
		{"trailers without an end", head + "Transfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n", 400},
		{"headers without an end", head, "X-More: yes\r\n", 431},
		{"a header without an end", head + "X-More: ", "x", 431},
		{"a zipped body", whole("Content-Encoding: gzip\r\n", "\x1f\x8b\x08\x00"), "", 400},
		{"brackets", whole("", strings.Repeat("[", 1<<20)), "", 422},
		{"objects", whole("", strings.Repeat(`{"":`, 1<<18)), "", 422},
		{"names by the million", whole("", `{"":0`+numbered(1_000_000)+`}`), "", 422},
		{"the same name by the million", whole("", `{"":0`+strings.Repeat(`,"":0`, 1_000_000)+`}`), "", 422},
		{"a number of a mebibyte", whole("", `{"episode_id":{"rollout_id":"1-0","attempt":`+strings.Repeat("9", 1<<20)+`}}`), "", 422},
		{"zeros", whole("", strings.Repeat("\x00", 1<<20)), "", 422},
		{"half characters", whole("", `{"episode_id":{"rollout_id":"\ud800"}}`), "", 422},
		{"no UTF-8", whole("", "{\"\xff\":1}"), "", 400},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", 400},
		{"HTTP/0.9", "POST /run\r\n\r\n", "", 400},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\r\n", 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := answersTo(t, h, test.first, test.again); got != test.status && (test.again == "" || got != 0) {
				t.Errorf("answered with %d, want %d", got, test.status)
			}
		})
	}
	if calls := h.Routes(); len(calls) != 0 {
		t.Errorf("the servers were called: %v", calls)
	}
	if got := answersTo(t, h, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", ""); got != 200 {
		t.Errorf("afterwards it answers %d", got)
	}
}

// numbered are n members.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return b.String()
}

// A resources server's hostile reply to the metrics is a bad gateway, and is bounded by
// the limit on replies; a bomb is passed on as it is, and not unpacked.
func TestHostileMetrics(t *testing.T) {
	h := newHouse(t, func(s *settings) { s.driver.Resources.MaxReplyBytes = 1 << 20 })
	large := strings.Repeat("x", 1<<20+1)
	for _, test := range []struct {
		name   string
		reply  scripted.Action
		status int
	}{
		{"too much", scripted.Action{Raw: &large}, 502},
		{"too much of a refusal", scripted.Action{Status: 422, Raw: &large}, 502},
		{"too much of another", scripted.Action{Status: 500, Raw: &large}, 502},
		{"a bomb", scripted.Action{JSON: []byte(`"not unpacked"`), Headers: [][2]string{{"Content-Encoding", "gzip"}}}, 200},
		{"a redirect elsewhere", scripted.Action{Status: 307, Headers: [][2]string{{"Location", "//elsewhere.invalid/"}}}, 502},
		{"no HTTP", scripted.Action{Drop: scripted.Garbage}, 502},
	} {
		h.Play(scripted.Script{scripted.Metrics: {test.reply}})
		request := "POST /aggregate_metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
		if got := answersTo(t, h, request, ""); got != test.status {
			t.Errorf("%s: answered with %d, want %d", test.name, got, test.status)
		}
	}
}
