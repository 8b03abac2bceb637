package envclient_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"example.com/turn/failures"
	"example.com/turn/internal/envclient"
	"example.com/turn/retry"
)

// A hostile environment server fails the attempt, in bounded memory, and nothing else:
// what breaks the contract is terminal, what is not HTTP is not.
func TestAHostileReplyToRun(t *testing.T) {
	const limit = 1 << 20
	endless := func(first, again string) func(io.Writer) {
		return func(w io.Writer) {
			_, err := io.WriteString(w, first)
			for again = strings.Repeat(again, 1000); err == nil; {
				_, err = io.WriteString(w, again)
			}
		}
	}
	for _, test := range []struct {
		name     string
		does     func(io.Writer)
		kind     failures.Kind
		terminal bool
		has      string
	}{
		{"no end", endless("HTTP/1.1 200 OK\r\n\r\n"+answer, " "), "", true, "larger than the limit"},
		{"9e18 bytes", endless("HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000000\r\n\r\n", " "), "", true, "larger than the limit"},
		{"two lengths", endless("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", " "), failures.TransportPeerDrop, false, "Content-Length"},
		{"a refusal without an end", endless("HTTP/1.1 422 No\r\n\r\n", "never "), "", true, "422 Unprocessable Entity: never never"},
		{"trailers without an end", endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"), failures.TransportPeerDrop, false, "trailer"},
		{"headers without an end", endless("HTTP/1.1 200 OK\r\n", "X: y\r\n"), failures.TransportPeerDrop, false, "headers exceeded"},
		{"a zipped bomb", endless("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "\x1f\x8b"), "", true, "it is encoded (gzip)"},
		{"brackets", endless("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "["), "", true, "nesting deeper than 10000"},
		{"a redirect elsewhere", endless("HTTP/1.1 307 Go\r\nLocation: //elsewhere.invalid/\r\n\r\n", "go "), "", true, "307 Temporary Redirect: go go"},
		{"another protocol", endless("HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "x"), "", true, "switches protocols"},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				test.does(conn)
			})
			client := newClient(t, envclient.Config{URL: url, MaxReplyBytes: limit, Resend: retry.Resend{Max: -1}})
			f := client.Run(t.Context(), request()).Failure
			if f == nil || f.Kind != test.kind || f.Terminal != test.terminal || !strings.Contains(f.Reason, test.has) {
				t.Errorf("got %+v, want kind %q, terminal %t, …%s…", f, test.kind, test.terminal, test.has)
			}
		})
	}
}
