package pool_test

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/pool"
)

// replies are what a server may say, good and bad.
var replies = map[string]string{
	"a length":                      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
	"no body":                       "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"chunks":                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
	"chunks and trailers":           "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Sum: 5\r\nY: 6\r\n\r\n",
	"a trailer that is none":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nnothing\r\n\r\n",
	"an empty body in chunks":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"a length and chunks":           "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
	"neither a length nor chunks":   "HTTP/1.1 200 OK\r\n\r\n{}",
	"an end with the connection":    "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}",
	"a length and the end":          "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.0":                      "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.0 that goes on":         "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.0 in chunks":            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
	"another version":               "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
	"204":                           "HTTP/1.1 204 No Content\r\n\r\n",
	"204 with a length":             "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}",
	"304":                           "HTTP/1.1 304 Not Modified\r\nContent-Length: 20\r\n\r\n",
	"205":                           "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
	"100 first":                     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
	"hints first":                   "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nSet-Cookie: a=b\r\n\r\nHTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
	"100 and no more":               "HTTP/1.1 100 Continue\r\n\r\n",
	"another protocol":              "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
	"a status of nothing":           "HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n",
	"a status of four digits":       "HTTP/1.1 2000 X\r\nContent-Length: 0\r\n\r\n",
	"a status without words":        "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}",
	"ends of lines without returns": "HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
	"lines that go on":              "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
	"one length twice":              "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
	"two lengths":                   "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
	"a length below zero":           "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
	"a length with a sign":          "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
	"a length that is too large":    "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
	"another coding":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
	"a chunk of no size":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
	"a chunk that is too long":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
	"cut off in its status":         "HTTP/1.1 20",
	"cut off in its head":           "HTTP/1.1 200 OK\r\nContent-Le",
	"cut off before its body":       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
	"cut off in its body":           "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{",
	"cut off in a chunk":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
	"cut off before the last chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
	"cut off in the trailers":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
	"nothing":                       "",
	"not HTTP":                      "SSH-2.0-OpenSSH_9.6\r\n",
	"not HTTP, without an end":      strings.Repeat("x", 9000),
	"a field without a colon":       "HTTP/1.1 200 OK\r\nnothing\r\n\r\n{}",
	"a field with a blank":          "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
	"a body as large as the buffer": "HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n" + strings.Repeat("x", 4096),
	"a large body":                  "HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 20000),
	"a large head":                  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 20000) + "\r\nContent-Length: 2\r\n\r\n{}",
	"more behind a length":          "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}more",
	"a line behind a length":        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}\r\n",
	"two replies":                   "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	"two replies in chunks":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	"a body behind 304":             "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n{}",
}

// A reply is to this transport what it is to net/http's, whole or in pieces, with the
// connection going on behind it or not; and the connection is used again in the same
// cases. What differs is meant: a switch of protocols has no body here.
func TestRepliesAreReadAsNetHTTPReadsThem(t *testing.T) {
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"POST", "GET", "HEAD"} {
				for _, piece := range []int{1 << 20, 4096, 7, 1} {
					if piece < 100 && len(reply) > 1000 {
						continue
					}
					for _, ends := range []bool{true, false} {
						compare(t, method, reply, piece, ends)
					}
				}
			}
		})
	}
}

func FuzzRepliesAreReadAsNetHTTPReadsThem(f *testing.F) {
	for _, name := range slices.Sorted(maps.Keys(replies)) {
		reply := replies[name]
		if len(reply) < 1000 {
			f.Add(reply, uint8(0), uint16(5), true)
			f.Add(reply, uint8(1), uint16(1000), false)
		}
	}
	f.Fuzz(func(t *testing.T, reply string, method uint8, piece uint16, ends bool) {
		methods := []string{"POST", "GET", "HEAD"}
		compare(t, methods[int(method)%len(methods)], reply, int(piece)+1, ends)
	})
}

// compare gives a reply to both transports.
func compare(t *testing.T, method, reply string, piece int, ends bool) {
	t.Helper()
	ours, theirs := pool.New(), &http.Transport{DisableCompression: true}
	s := script{method: method, reply: reply, piece: piece, ends: ends}
	got, idle := s.play(t, ours, &ours.DialContext)
	want, theirsIdle := s.play(t, theirs, &theirs.DialContext)
	if !idle || !theirsIdle { // a pipe, other than a socket, cannot be looked into
		got.Again, want.Again = "", ""
		got.Same, want.Same = false, false
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s %.100q in pieces of %d, the connection ends %v (-net/http +ours):\n%s", method, reply, piece, ends, diff)
	}
}

// A script is what the server of one connection says when it is asked.
type script struct {
	method, reply string
	piece         int  // how much it says at once
	ends          bool // the connection ends behind it; else it goes on
}

// A story is what a transport makes of it.
type story struct {
	Failed   bool // there is no reply; the rest of it is empty
	Status   string
	Proto    string
	Header   http.Header
	Length   int64
	Encoding []string
	Close    bool
	Trailer  http.Header
	Body     string
	CutOff   bool // the body ended in an error

	Again string // what the next call got
	Same  bool   // on the same connection; not looked at while the server still speaks
}

// play tells also whether the server had said all when the next call was made.
func (s script) play(t *testing.T, transport interface {
	http.RoundTripper
	CloseIdleConnections()
}, dial *func(ctx context.Context, network, address string) (net.Conn, error)) (told story, idle bool) {
	synctest.Test(t, func(t *testing.T) {
		var (
			dials   int
			said    atomic.Bool
			serving sync.WaitGroup
		)
		*dial = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			dials++
			reply := s.reply
			if dials > 1 {
				reply = answerOK
			}
			serving.Go(func() {
				defer func() { _ = theirs.Close() }()
				s.serve(theirs, reply, dials == 1, &said)
			})
			return ours, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request := func() *http.Request {
			r, err := http.NewRequestWithContext(ctx, s.method, "http://weather.internal", nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		told.read(transport.RoundTrip(request()))
		synctest.Wait()
		if idle = said.Load(); idle && ctx.Err() == nil {
			var again story
			again.read(transport.RoundTrip(request()))
			told.Again, told.Same = again.Status+" "+again.Body, dials == 1
		}
		transport.CloseIdleConnections()
		cancel()
		serving.Wait()
	})
	return told, idle
}

// serve answers the first request with a reply and the others well.
func (s script) serve(conn net.Conn, reply string, first bool, said *atomic.Bool) {
	in := bufio.NewReader(conn)
	for {
		if _, err := readHead(in); err != nil {
			return
		}
		for len(reply) > 0 {
			n := min(s.piece, len(reply))
			if _, err := io.WriteString(conn, reply[:n]); err != nil {
				break // it may have closed what it will not use again
			}
			reply = reply[n:]
		}
		if first {
			said.Store(true)
			if s.ends {
				return
			}
		}
		reply = answerOK
	}
}

func (s *story) read(response *http.Response, err error) {
	if err != nil {
		s.Failed = true
		return
	}
	s.Status, s.Proto, s.Header = response.Status, response.Proto, response.Header
	s.Length, s.Encoding, s.Close = response.ContentLength, response.TransferEncoding, response.Close
	if response.StatusCode != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(response.Body)
		s.Body, s.CutOff = string(body), err != nil
		s.Trailer = response.Trailer
	}
	_ = response.Body.Close()
}
