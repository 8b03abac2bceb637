package episodetest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode/episodetest"
)

func dropped(a answer) bool { return errors.Is(a.err, io.EOF) && a.status == 0 }

func wasReset(a answer) bool { return errors.Is(a.err, syscall.ECONNRESET) && a.status == 0 }

func whole(a answer) bool {
	return a.err == nil && a.status == 200 && a.body == "said hello" && a.header.Get("Set-Cookie") == "session=1"
}

// What each kind of fault is to the caller and to the server, on a connection that is
// new and on one that has carried a call; and whether the connection lives on.
func TestEachKindOfFault(t *testing.T) {
	said := []heard{{"hello", false}}
	for _, test := range []struct {
		fault  episodetest.Fault
		sees   func(answer) bool
		heard  []heard
		usable bool
	}{
		{episodetest.Fault{}, whole, said, true},
		{episodetest.Fault{Kind: episodetest.DropBeforeRead}, dropped, nil, false},
		{episodetest.Fault{Kind: episodetest.ResetBeforeRead}, wasReset, nil, false},
		{episodetest.Fault{Kind: episodetest.DropBeforeForward}, dropped, nil, false},
		{episodetest.Fault{Kind: episodetest.ResetBeforeForward}, wasReset, nil, false},
		{episodetest.Fault{Kind: episodetest.DelayBeforeForward, Delay: time.Millisecond}, whole, said, true},
		{episodetest.Fault{Kind: episodetest.CutRequest, Offset: 2}, dropped, []heard{{"he", true}}, false},
		{episodetest.Fault{Kind: episodetest.CutRequest}, dropped, []heard{{"", true}}, false},
		{episodetest.Fault{Kind: episodetest.Duplicate}, whole, []heard{{"hello", false}, {"hello", false}}, true},
		{episodetest.Fault{Kind: episodetest.Answer, Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: []byte("busy")}, func(a answer) bool {
			return a.err == nil && a.status == 503 && a.header.Get("Retry-After") == "1" && a.body == "busy"
		}, nil, true},
		{episodetest.Fault{Kind: episodetest.Answer}, func(a answer) bool { return a.err == nil && a.status == 200 && a.body == "" }, nil, true},
		{episodetest.Fault{Kind: episodetest.Answer, Header: http.Header{"Connection": {"close"}}}, func(a answer) bool { return a.err == nil && a.status == 200 }, nil, false},
		{episodetest.Fault{Kind: episodetest.Garbage}, func(a answer) bool {
			return a.err != nil && strings.Contains(a.err.Error(), `malformed HTTP status code "is"`)
		}, nil, false},
		{episodetest.Fault{Kind: episodetest.Garbage, Body: []byte("HTTP/1.1 2")}, func(a answer) bool {
			return a.err != nil && strings.Contains(a.err.Error(), `malformed HTTP`)
		}, nil, false},
		{episodetest.Fault{Kind: episodetest.DropBeforeReply}, dropped, said, false},
		{episodetest.Fault{Kind: episodetest.ResetBeforeReply}, wasReset, said, false},
		{episodetest.Fault{Kind: episodetest.DelayBeforeReply, Delay: time.Millisecond}, whole, said, true},
		{episodetest.Fault{Kind: episodetest.DelayInReply, Delay: time.Millisecond, Offset: 20}, whole, said, true},
		{episodetest.Fault{Kind: episodetest.DropInReply, Offset: 7}, func(a answer) bool { // in the status line
			return a.err != nil && strings.Contains(a.err.Error(), `malformed HTTP response "HTTP/1."`)
		}, said, false},
		{episodetest.Fault{Kind: episodetest.DropInReply, Offset: 25}, func(a answer) bool { // in a header
			return a.err != nil && strings.Contains(a.err.Error(), `missing colon: "Set-Cook"`)
		}, said, false},
		{episodetest.Fault{Kind: episodetest.DropInReply, Offset: replySize - 3}, func(a answer) bool { // in the body
			return errors.Is(a.err, io.ErrUnexpectedEOF) && a.status == 200 && a.body == "said he" && a.header.Get("Set-Cookie") != ""
		}, said, false},
		{episodetest.Fault{Kind: episodetest.ResetInReply, Offset: replySize - 3}, func(a answer) bool {
			return errors.Is(a.err, syscall.ECONNRESET)
		}, said, false},
		{episodetest.Fault{Kind: episodetest.ShortenReply, Offset: 6}, func(a answer) bool {
			return a.err == nil && a.status == 200 && a.body == "said h" && a.header.Get("Content-Length") == "6"
		}, said, true},
		{episodetest.Fault{Kind: episodetest.GarbleReply, Offset: replySize - 3}, func(a answer) bool {
			return a.err == nil && a.status == 200 && a.body == "said he\x93\x93\x90"
		}, said, true},
		{episodetest.Fault{Kind: episodetest.GarbleReply, Offset: int64(len("HTTP/1.1 200 OK\r\nSet-Cookie: "))}, func(a answer) bool {
			return a.err == nil && a.body == "said hello" && a.header.Get("Set-Cookie") == "\x8c\x9a\x8c\x8c\x96\x90\x91\xc2"+"1"
		}, said, false},
		{episodetest.Fault{Kind: episodetest.GarbleReply, Offset: 2}, func(a answer) bool {
			return a.err != nil && strings.Contains(a.err.Error(), "malformed HTTP")
		}, said, false},
	} {
		for _, reused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reused %t", test.fault, reused), func(t *testing.T) {
				server := newBehind(t)
				proxy := episodetest.Start(t, server.URL, nil)
				client := newClient(t)
				if reused {
					if a := post(within(t), client, proxy.URL()+"/before", "hello"); !whole(a) {
						t.Fatalf("the call before: %+v", a)
					}
					server.hears(t, 1)
				}
				proxy.SetPlan(episodetest.Script{episodetest.Seed: {test.fault}})

				got := post(within(t), client, proxy.URL()+"/seed_session?a=b", "hello")
				if !test.sees(got) || got.reused != reused {
					t.Errorf("the caller sees %+v (%v)", got, got.err)
				}
				if diff := cmp.Diff(test.heard, server.hears(t, len(test.heard))); diff != "" {
					t.Errorf("the server heard (-want +got):\n%s", diff)
				}
				calls := proxy.Calls()
				call := calls[len(calls)-1]
				want := episodetest.Call{Route: episodetest.Seed, Nth: 1, Method: "POST", Path: "/seed_session", Fault: test.fault, Injected: test.fault.Kind != "", Sent: len(test.heard)}
				call.Status = 0
				if diff := cmp.Diff(want, call); diff != "" {
					t.Errorf("the log has (-want +got):\n%s", diff)
				}
				if n := proxy.Injected()[test.fault.Kind]; test.fault.Kind != "" && n != 1 {
					t.Errorf("injected %d times", n)
				}

				after := post(within(t), client, proxy.URL()+"/seed_session", "hello")
				if !whole(after) || after.reused != test.usable {
					t.Errorf("the call after, want reuse %t: %+v", test.usable, after)
				}
				server.hears(t, 1)
			})
		}
	}
}

// replySize is the length of what newBehind's server sends in reply to "hello".
var replySize = int64(len("HTTP/1.1 200 OK\r\nSet-Cookie: session=1\r\nDate: Mon, 30 Nov 2026 19:05:22 GMT\r\nContent-Length: 10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nsaid hello"))

// A message that is not that long passes whole, and the log does not say otherwise.
func TestAFaultBehindTheEndDoesNotHappen(t *testing.T) {
	for _, kind := range []episodetest.Kind{episodetest.CutRequest, episodetest.DelayInReply, episodetest.DropInReply, episodetest.ResetInReply, episodetest.ShortenReply, episodetest.GarbleReply} {
		for _, path := range []string{"/seed_session", "/chunked"} {
			t.Run(string(kind)+path, func(t *testing.T) {
				server := newBehind(t)
				fault := episodetest.Fault{Kind: kind, Offset: replySize + 200}
				if kind == episodetest.DelayInReply {
					fault.Delay = time.Hour
				}
				proxy := episodetest.Start(t, server.URL, episodetest.PlanFunc(func(episodetest.Call) episodetest.Fault { return fault }))
				client := newClient(t)
				for range 2 {
					got := post(within(t), client, proxy.URL()+path, "hello")
					if got.err != nil || !strings.HasSuffix(got.body, "said hello") {
						t.Errorf("the caller sees %+v", got)
					}
				}
				for _, call := range proxy.Calls() {
					if call.Injected || call.Err != nil || call.Status != 200 {
						t.Errorf("the log has %+v", call)
					}
				}
				if n := len(proxy.Injected()); n != 0 {
					t.Errorf("%d kinds were injected", n)
				}
			})
		}
	}
}

// replies are a reply in each framing, and what its body means.
var replies = []struct{ name, text, body string }{
	{"length", "HTTP/1.1 200 OK\r\ncontent-length: 12\r\nX-Odd:  spaced \r\n\r\nhello, world", "hello, world"},
	{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n6;ext=1\r\nhello,\r\n006\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n", "hello, world"},
	{"until the end", "HTTP/1.1 200 OK\r\n\r\nhello, world", "hello, world"},
}

const rawRequest = "POST /verify HTTP/1.1\r\nhost: x\r\nX-b: 1\r\nX-A: 2\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n"

// endIf ends a reply that ends with its connection.
func endIf(name string) func(net.Conn) {
	if name == "until the end" {
		return func(net.Conn) {}
	}
	return nil
}

func TestMessagesPassByteForByte(t *testing.T) {
	for _, reply := range replies {
		t.Run(reply.name, func(t *testing.T) {
			text := "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + reply.text
			server := newRaw(t, "0\r\n\r\n", text, endIf(reply.name))
			proxy := episodetest.Start(t, server.url, nil)
			conn := dial(t, proxy)
			for range 2 {
				say(t, conn, rawRequest)
				got := make([]byte, len(text))
				if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
					t.Fatalf("the caller got %q, %v", got, err)
				}
				if got := <-server.got; got != rawRequest {
					t.Errorf("the server got %q", got)
				}
				if endIf(reply.name) != nil {
					if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
						t.Errorf("after the end came %q, %v", rest, err)
					}
					return
				}
			}
		})
	}
}

func TestAReplyIsDroppedAtEveryByte(t *testing.T) {
	for _, reply := range replies {
		for n := range len(reply.text) {
			server := newRaw(t, "0\r\n\r\n", reply.text, endIf(reply.name))
			proxy := episodetest.Start(t, server.url, episodetest.Script{episodetest.Verify: {{Kind: episodetest.DropInReply, Offset: int64(n)}}})
			conn := dial(t, proxy)
			say(t, conn, rawRequest)
			if got, err := io.ReadAll(conn); err != nil || string(got) != reply.text[:n] {
				t.Errorf("%s, dropped at %d: %q, %v", reply.name, n, got, err)
			}
			_ = conn.Close()
			proxy.Close()
		}
	}
}

// After a reply that is shorter than it was, both connections carry the next one.
func TestAReplyIsShortenedToEveryLength(t *testing.T) {
	for _, reply := range replies {
		server := newRaw(t, "0\r\n\r\n", reply.text, endIf(reply.name))
		proxy := episodetest.Start(t, server.url, episodetest.PlanFunc(func(call episodetest.Call) episodetest.Fault {
			return episodetest.Fault{Kind: episodetest.ShortenReply, Offset: int64(call.Nth - 1)}
		}))
		conn := dial(t, proxy)
		from := bufio.NewReader(conn)
		for n := range len(reply.body) + 2 {
			if endIf(reply.name) != nil {
				conn = dial(t, proxy)
				from = bufio.NewReader(conn)
			}
			say(t, conn, rawRequest)
			response, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if want := reply.body[:min(n, len(reply.body))]; err != nil || string(body) != want {
				t.Errorf("%s, shortened to %d: %q, %v, want %q", reply.name, n, body, err, want)
			}
		}
		if got := proxy.Injected()[episodetest.ShortenReply]; got != len(reply.body) {
			t.Errorf("%s: shortened %d times, want %d", reply.name, got, len(reply.body))
		}
	}
}

func TestARequestIsCutAtEveryByte(t *testing.T) {
	const head, body = "POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", "hello"
	for n := range len(body) {
		got := make(chan string, 1)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				got <- err.Error()
				return
			}
			text, err := io.ReadAll(conn)
			_ = conn.Close()
			got <- fmt.Sprint(string(text), err)
		}()
		proxy := episodetest.Start(t, "http://"+listener.Addr().String(), episodetest.Script{episodetest.Verify: {{Kind: episodetest.CutRequest, Offset: int64(n)}}})
		conn := dial(t, proxy)
		say(t, conn, head+body)
		if text, err := io.ReadAll(conn); err != nil || len(text) != 0 {
			t.Errorf("cut at %d: the caller got %q, %v", n, text, err)
		}
		if text, want := <-got, head+body[:n]+"<nil>"; text != want {
			t.Errorf("cut at %d: the server got %q, want %q", n, text, want)
		}
		_ = listener.Close()
		_ = conn.Close()
		proxy.Close()
	}
}

func TestFaultsAtFaultAreRefused(t *testing.T) {
	for _, fault := range []episodetest.Fault{
		{Kind: "sometimes"},
		{Offset: 1},
		{Kind: episodetest.DropInReply, Offset: -1},
		{Kind: episodetest.DelayBeforeReply},
		{Kind: episodetest.Duplicate, Delay: time.Second},
		{Kind: episodetest.DropBeforeRead, Status: 500},
		{Kind: episodetest.Answer, Status: 100},
		{Kind: episodetest.Garbage, Header: http.Header{}},
		{Kind: episodetest.DropBeforeRead, Body: []byte("x")},
	} {
		if fault.Validate() == nil {
			t.Errorf("%+v: no complaint", fault)
		}
	}
	several := episodetest.Fault{Kind: "sometimes", Offset: -1, Delay: -1, Status: 1}
	if err := several.Validate(); strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("want four complaints: %v", err)
	}
}

// A plan that returns what is no fault is told so, where it can be seen.
func TestAPlanAtFaultIsSeen(t *testing.T) {
	server := newBehind(t)
	proxy := episodetest.Start(t, server.URL, episodetest.PlanFunc(func(episodetest.Call) episodetest.Fault {
		return episodetest.Fault{Kind: "sometimes"}
	}))
	got := post(within(t), newClient(t), proxy.URL()+"/verify", "hello")
	if got.status != 500 || !strings.Contains(got.body, `there is no fault of kind "sometimes"`) {
		t.Errorf("the caller sees %+v", got)
	}
	if call := proxy.Calls()[0]; call.Err == nil || call.Injected || len(proxy.Injected()) != 0 {
		t.Errorf("the log has %+v", call)
	}
	server.hears(t, 0)
}
