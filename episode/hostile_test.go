package episode_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

type hostility struct {
	name string
	does func(io.Writer)

	status int    // of a refusal; 0: it is none
	broken bool   // the reply is not HTTP: a peer drop
	has    string // in the reason
}

// heavy reports whether it goes on until net/http has read ten mebibytes of headers. The
// gate tries those with one call.
func (h hostility) heavy() bool { return h.has == "headers exceeded" || h.status == 431 }

// hostileLimit is the limit on replies in the tests of hostile ones.
const hostileLimit = 1 << 20

// says is a peer that answers with those texts, one after another.
func says(texts ...string) func(io.Writer) {
	return func(w io.Writer) {
		for _, text := range texts {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	}
}

// endless is a peer that says one text and then another, for ever.
func endless(first, again string) func(io.Writer) {
	again = strings.Repeat(again, max(1, 16<<10/len(again)))
	return func(w io.Writer) {
		_, err := io.WriteString(w, first)
		for err == nil {
			_, err = io.WriteString(w, again)
		}
	}
}

// zipped is as many zeros, compressed.
func zipped(n int64) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.CopyN(w, zeros{}, n)
	_ = w.Close()
	return out.String()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func withLength(head, body string) string {
	return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
}

const (
	ok      = "HTTP/1.1 200 OK\r\n"
	refuses = "HTTP/1.1 422 No\r\n"
	breaks  = "HTTP/1.1 500 Oops\r\n"
	chunked = "Transfer-Encoding: chunked\r\n\r\n"
)

// What hostile peers do, and what becomes of a call that meets it. The kinds are those
// of section 4: what is not HTTP may pass, what breaks the contract does not.
func hostilities() []hostility {
	bomb := zipped(16 << 20)
	return []hostility{
		{"a reply without an end", endless(ok+"\r\n{", " "), 0, false, "larger than the limit of 1048576 bytes"},
		{"a reply of 2 GB", endless(ok+"Content-Length: 2147483648\r\n\r\n{", " "), 0, false, "larger than the limit"},
		{"a reply of 9e18 bytes", endless(ok+"Content-Length: 9000000000000000000\r\n\r\n{", " "), 0, false, "larger than the limit"},
		{"a length below zero", says(ok + "Content-Length: -1\r\n\r\n{}"), 0, true, "Content-Length"},
		{"a length beyond all", says(ok + "Content-Length: 99999999999999999999\r\n\r\n{}"), 0, true, "Content-Length"},
		{"two lengths", says(ok + "Content-Length: 2\r\nContent-Length: 2147483648\r\n\r\n{}"), 0, true, "Content-Length"},
		{"chunks without an end", endless(ok+chunked+"1\r\n{\r\n", "1000\r\n"+strings.Repeat(" ", 0x1000)+"\r\n"), 0, false, "larger than the limit"},
		{"a chunk of 2^64-1 bytes", endless(ok+chunked+"ffffffffffffffff\r\n{", " "), 0, false, "larger than the limit"},
		{"a chunk of more than 2^64 bytes", says(ok + chunked + "fffffffffffffffff\r\n{"), 0, true, "chunk"},
		{"a chunk of less than nothing", says(ok + chunked + "-1\r\n{"), 0, true, "chunk"},
		{"the name of a chunk without an end", endless(ok+chunked+"1;x=", "x"), 0, true, ""},
		{"chunks of a byte with long names", endless(ok+chunked, "1;"+strings.Repeat("x", 4000)+"\r\n \r\n"), 0, true, ""},
		{"trailers without an end", endless(ok+chunked+"2\r\n{}\r\n0\r\n", "X-More: yes\r\n"), 0, true, "trailer"},
		{"a trailer without an end", endless(ok+chunked+"2\r\n{}\r\n0\r\nX-More: ", "x"), 0, true, "trailer"},

		{"a final refusal without an end", endless(refuses+"\r\nnobody may ", "do that "), 422, false, "nobody may do that"},
		{"a refusal without an end", endless(breaks+"\r\nnothing will ", "do "), 500, false, "nothing will do"},
		{"a final refusal of 2 GB", endless(refuses+"Content-Length: 2147483648\r\n\r\nno, ", "no, "), 422, false, "no, no,"},
		{"a refusal in chunks without an end", endless(breaks+chunked, "4\r\nno, \r\n"), 500, false, "no, no,"},
		{"a refusal with trailers without an end", endless(breaks+chunked+"2\r\n{}\r\n0\r\n", "X-More: yes\r\n"), 0, true, "trailer"},

		{"a zipped bomb", says(withLength(ok+"Content-Encoding: gzip\r\n", bomb)), 0, false, "it is encoded (gzip), which was not asked for"},
		{"a bomb of another kind", endless(ok+"Content-Encoding: br\r\n\r\n", "\x00"), 0, false, "it is encoded (br)"},
		{"one more", endless(ok+"Content-Encoding: zstd\r\n\r\n", "\x00"), 0, false, "it is encoded (zstd)"},
		{"a final refusal that is a zipped bomb", says(withLength(refuses+"Content-Encoding: gzip\r\n", bomb)), 422, false, "422 Unprocessable Entity: Unprocessable Entity"},
		{"a refusal that is a zipped bomb", says(withLength(breaks+"Content-Encoding: gzip\r\n", bomb)), 500, false, "500 Internal Server Error: Internal Server Error"},

		{"headers without an end", endless(ok, "X-More: yes\r\n"), 0, true, "headers exceeded"},
		{"a header without an end", endless(ok+"X-More: ", "x"), 0, true, "headers exceeded"},
		{"a header name without an end", endless(ok, "x"), 0, true, "headers exceeded"},
		{"a status line without an end", endless("HTTP/1.1 200 O", "K"), 0, true, "headers exceeded"},
		{"hints without an end", endless("", "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"), 0, true, "headers exceeded"},
		{"leaves to go on without an end", endless("", "HTTP/1.1 100 Continue\r\n\r\n"), 0, true, "headers exceeded"},
		{"a switch of protocols", endless("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "x"), 0, false, "it switches protocols (101)"},
		{"a status of four digits", says("HTTP/1.1 2000 OK\r\n\r\n{}"), 0, true, "malformed"},
		{"a status below zero", says("HTTP/1.1 -20 OK\r\n\r\n{}"), 0, true, "malformed"},
		{"a status below all", says("HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n"), 0, true, "not HTTP"},
		{"a status beyond all", says(withLength("HTTP/1.1 999 X\r\n", "what")), 999, false, "with 999: what"},
		{"HTTP/0.9", endless("{}", " "), 0, true, ""},
		{"HTTP/2 to one who does not speak it", endless("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00"), 0, true, "malformed"},
		{"the frames of HTTP/2", endless("\x00\x00\x12\x04\x00\x00\x00\x00\x00", "\x00"), 0, true, ""},
		{"TLS", endless("\x15\x03\x01\x00\x02\x02\x16", "\x16"), 0, true, ""},

		{"brackets without an end", endless(ok+"\r\n", "["), 0, false, "larger than the limit"},
		{"a mebibyte of brackets", says(withLength(ok, strings.Repeat("[", hostileLimit))), 0, false, "nesting deeper than 10000"},
		{"a mebibyte of objects", says(withLength(ok, strings.Repeat(`{"":`, hostileLimit/4))), 0, false, "nesting deeper than 10000"},
		{"a number of a mebibyte", says(withLength(ok, strings.Repeat("9", hostileLimit))), 0, false, "want an object, got a number"},
		{"a name of a mebibyte", says(withLength(ok, `{"`+strings.Repeat("x", hostileLimit-6)+`":1}`)), 0, false, "lacks"},
		{"members by the hundred thousand", says(withLength(ok, `{"":0`+strings.Repeat(`,"":0`, 200_000)+`}`)), 0, false, "lacks"},
		{"text that is not UTF-8", says(withLength(ok, "{\"\xc3\x28\":1}")), 0, false, "not UTF-8"},
		{"zeros", says(withLength(ok, strings.Repeat("\x00", 1000))), 0, false, "not JSON"},
		{"a mark of the byte order", says(withLength(ok, "\uFEFF{}")), 0, false, "not JSON"},
		{"half characters", says(withLength(ok, `{"\ud800":"\udfff"}`)), 0, false, "lacks"},

		{"a redirect without an end", endless("HTTP/1.1 307 Go\r\nLocation: http://elsewhere.invalid/\r\n\r\n", "go "), 307, false, "with 307 Temporary Redirect: go go"},
		{"a redirect to a scheme's host", says("HTTP/1.1 307 Go\r\nLocation: //elsewhere.invalid/\r\nContent-Length: 0\r\n\r\n"), 307, false, "with 307 Temporary Redirect"},
		{"a redirect with a port that is another", says("HTTP/1.1 308 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), 308, false, "with 308 Permanent Redirect"},
		{"a redirect with a user", says("HTTP/1.1 308 Go\r\nLocation: http://me:secret@elsewhere.invalid/\r\nContent-Length: 0\r\n\r\n"), 308, false, "with 308 Permanent Redirect"},
		{"a redirect to 10 MB of a path", says("HTTP/1.1 307 Go\r\nLocation: /", strings.Repeat("x", 9<<20), "\r\nContent-Length: 0\r\n\r\n"), 431, false, "with 431 Request Header Fields Too Large"},
		{"a redirect to more than headers may have", says("HTTP/1.1 307 Go\r\nLocation: /", strings.Repeat("x", 11<<20), "\r\nContent-Length: 0\r\n\r\n"), 0, true, "headers exceeded"},

		{"cookies of a mebibyte and more", says(ok, strings.Repeat("Set-Cookie: a="+strings.Repeat("x", 4000)+"\r\nSet-Cookie: b="+strings.Repeat("y", 4000)+"\r\nSet-Cookie: a=1\r\n", 400), "Content-Length: 2\r\n\r\n{}"), 0, false, "its cookies have more than 1048576 bytes"},
		{"a cookie of two mebibytes", says(ok, "Set-Cookie: a="+strings.Repeat("x", 2<<20), "\r\nContent-Length: 2\r\n\r\n{}"), 0, false, "its cookies have more than 1048576 bytes"},
		{"a refusal with a cookie of two mebibytes", says(refuses, "Set-Cookie: a="+strings.Repeat("x", 2<<20), "\r\nContent-Length: 2\r\n\r\nno"), 422, false, "with 422 Unprocessable Entity: no"},
		{"a redirect with a cookie of two mebibytes", says("HTTP/1.1 307 Go\r\nLocation: /x\r\n", "Set-Cookie: a="+strings.Repeat("x", 2<<20), "\r\nContent-Length: 0\r\n\r\n"), 0, false, "its cookies have more than 1048576 bytes"},
	}
}

// A hostile server keeps the protocol, save that its answer to the calls on one path is
// said to the connection by whoever took it over.
func hostileServer(t *testing.T, path string, does func(io.Writer)) (b *bubble, url string) {
	t.Helper()
	b = &bubble{over: map[string]http.HandlerFunc{path: takenOver(does)}}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	return b, server.URL
}

func takenOver(does func(io.Writer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = readBody(r)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		does(conn)
	}
}

func hostileConfig(url string) episode.Config {
	once := retry.Resend{Max: 1, Pause: time.Millisecond} // for connections that were kept and are no more
	return episode.Config{
		Resources: resourcesclient.Config{URL: url, Name: "bench", Resend: once, MaxReplyBytes: hostileLimit},
		Agent:     agentclient.Config{URL: url, Name: "helper", Resend: once, MaxReplyBytes: hostileLimit},
	}
}

// Whatever a peer answers a call with, the call is that failure which section 4 has for
// it, the closes that are owed come, and nothing is left.
func TestAHostileReplyFailsItsCallAndNothingElse(t *testing.T) {
	for _, call := range []struct {
		path  string
		stage failures.Stage
		calls []string // each once, repetitions left out
	}{
		{seed, failures.StageSeed, []string{seed, rclose}},
		{open, failures.StageAgent, []string{seed, open, aclose, rclose}},
		{turn, failures.StageAgent, []string{seed, open, turn, aclose, rclose}},
		{aclose, failures.StageCleanup, []string{seed, open, turn, aclose, rclose}},
		{verify, failures.StageVerification, []string{seed, open, turn, aclose, verify, rclose}},
	} {
		for _, test := range hostilities() {
			if test.heavy() && call.path != turn && os.Getenv("TURN_TEST_FULL") == "" {
				continue
			}
			t.Run(test.name+" to "+call.path, func(t *testing.T) {
				b, url := hostileServer(t, call.path, test.does)
				f := mustFail(t, newDriver(t, hostileConfig(url)).Run(soon(t), newRequest()))
				terminal := !test.broken && test.status < 500
				if f.Stage != call.stage || f.Terminal != terminal || f.Status != test.status || (f.Kind == failures.TransportPeerDrop) != test.broken {
					t.Errorf("got stage %s, terminal %t, status %d, kind %q; want %s, %t, %d, a peer drop %t (%.300s)",
						f.Stage, f.Terminal, f.Status, f.Kind, call.stage, terminal, test.status, test.broken, f.Reason)
				}
				has := test.has
				if has == "lacks" && call.path == turn {
					has = "lacks output"
				}
				if !strings.Contains(f.Reason, has) {
					t.Errorf("reason %.300q lacks %q", f.Reason, has)
				}
				if diff := cmp.Diff(call.calls, once(b.paths())); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// once leaves out what is said again, and where a redirect leads to.
func once(paths []string) []string {
	var out []string
	for _, path := range paths {
		if !strings.HasPrefix(path, "/x") && (len(out) == 0 || out[len(out)-1] != path) {
			out = append(out, path)
		}
	}
	return out
}

// The resources close costs no verdict, whatever it is answered with, and what its
// success says is not even looked at.
func TestAHostileReplyToTheLastCloseCostsNothing(t *testing.T) {
	for _, test := range hostilities() {
		if test.heavy() && os.Getenv("TURN_TEST_FULL") == "" {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			b, url := hostileServer(t, rclose, test.does)
			var log strings.Builder
			config := hostileConfig(url)
			config.Logger = zerolog.New(&log)
			mustSucceed(t, newDriver(t, config).Run(soon(t), newRequest()))
			if diff := cmp.Diff([]string{seed, open, turn, aclose, verify, rclose}, once(b.paths())); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if failed := test.broken || test.status != 0; failed && !strings.Contains(log.String(), "the resources close failed") {
				t.Errorf("the log tells of no close that failed: %s", log.String())
			}
		})
	}
}

// Ids that are given back in other forms, and other sizes.
func TestAnIDThatIsGivenBackChanged(t *testing.T) {
	for name, id := range map[string]string{
		"a mebibyte": `"` + strings.Repeat("x", 1<<19) + `"`, "a number": "1e999999", "null": "null", "a list": `["x"]`, "an object": `{"id":"x"}`,
		"half characters": `"\ud800"`, "zeros": `"\u0000"`, "a number of digits": strings.Repeat("1", 1<<19),
	} {
		for _, call := range []struct {
			path, member string
		}{{seed, "resources_session_id"}, {open, "agent_session_id"}, {aclose, "agent_session_id"}} {
			_, url := hostileServer(t, call.path, says(withLength(ok+"Set-Cookie: s=1\r\n", `{"`+call.member+`":`+id+`}`)))
			f := mustFail(t, newDriver(t, hostileConfig(url)).Run(soon(t), newRequest()))
			if !f.Terminal || !strings.Contains(f.Reason, call.member+" is not the ") || len(f.Reason) > 300 {
				t.Errorf("%s from %s: terminal %t, %.400s", name, call.path, f.Terminal, f.Reason)
			}
		}
	}
}

// dribbles is a peer that says a text, and then a byte a second for ever.
func dribbles(first string) func(io.Writer) {
	return func(w io.Writer) {
		_, err := io.WriteString(w, first)
		for err == nil {
			time.Sleep(time.Second)
			_, err = io.WriteString(w, "x")
		}
	}
}

// A reply that comes a byte a second is cut by whichever limit its call has, in its
// head as in its body, in a refusal, in the body of a redirect that would be followed,
// and in a body that nobody looks at. Without a limit it is waited for: there is none
// that is hidden.
func TestAReplyThatDribblesIsCutByTheLimitOfItsCall(t *testing.T) {
	const most = 100 * time.Second
	limits := map[string]func(*episode.Config){
		"episode timeout": func(c *episode.Config) { c.EpisodeTimeout = most },
		"seed timeout":    func(c *episode.Config) { c.SeedTimeout = most },
		"agent timeout":   func(c *episode.Config) { c.AgentTimeout = most },
		"verify timeout":  func(c *episode.Config) { c.VerifyTimeout = most },
		"cleanup timeout": func(c *episode.Config) { c.CleanupTimeout = most },
	}
	for _, call := range []struct {
		path   string
		limits []string
		calls  []string
	}{
		{seed, []string{"episode timeout", "seed timeout"}, []string{seed, rclose}},
		{open, []string{"episode timeout", "seed timeout"}, []string{seed, open, aclose, rclose}},
		{turn, []string{"episode timeout"}, []string{seed, open, turn, aclose, rclose}},
		{turn, []string{"agent timeout"}, []string{seed, open, turn, aclose, verify, rclose}},
		{aclose, []string{"cleanup timeout"}, []string{seed, open, turn, aclose, rclose}},
		{verify, []string{"episode timeout", "verify timeout"}, []string{seed, open, turn, aclose, verify, rclose}},
		{rclose, []string{"cleanup timeout"}, []string{seed, open, turn, aclose, verify, rclose}},
	} {
		for place, text := range map[string]string{
			"status line": "HTTP/1.1 200 ", "head": ok + "X-More: ", "body": ok + "\r\n{", "announced body": ok + "Content-Length: 1000000\r\n\r\n{",
			"chunk": ok + chunked + "1000\r\n", "size of a chunk": ok + chunked + "1;", "trailer": ok + chunked + "2\r\n{}\r\n0\r\n",
			"refusal": breaks + "\r\n", "redirect": "HTTP/1.1 307 Go\r\nLocation: /elsewhere\r\n\r\n", "hint": "HTTP/1.1 103 Early\r\n",
		} {
			for _, limit := range call.limits {
				t.Run(fmt.Sprintf("%s of %s by the %s", place, call.path, limit), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := &bubble{over: map[string]http.HandlerFunc{call.path: takenOver(dribbles(text))}}
						d, stop := b.driver(t, limits[limit])
						defer time.Sleep(2 * time.Second) // in which the peer sees that nobody listens
						defer stop()
						began := time.Now()
						reply := d.Run(t.Context(), newRequest())
						if took := time.Since(began); took != most {
							t.Errorf("took %s, want %s", took, most)
						}
						switch {
						case limit == "agent timeout":
							if result := mustSucceed(t, reply); !result.AgentTimedOut {
								t.Error("the agent has not run out of time")
							}
						case call.path == rclose:
							mustSucceed(t, reply)
						default:
							words := "the " + limit + " of 1m40s ran out in POST "
							if limit == "episode timeout" {
								words = "Episode timed out after 1m40s in POST "
							}
							if f := mustFail(t, reply); f.Terminal || !strings.Contains(f.Reason, words) {
								t.Errorf("terminal %t: %s", f.Terminal, f.Reason)
							}
						}
						if diff := cmp.Diff(call.calls, b.paths()); diff != "" {
							t.Errorf("calls (-want +got):\n%s", diff)
						}
					})
				})
			}
		}
	}
}

// The caller's leaving cuts a dribbling reply too, at once.
func TestACallerThatLeavesCutsAReplyThatDribbles(t *testing.T) {
	b, url := hostileServer(t, turn, dribbles(ok+"\r\n{"))
	ctx, leave := cancelAfter(t, b, turn)
	defer leave()
	f := mustFail(t, newDriver(t, hostileConfig(url)).Run(ctx, newRequest()))
	if f.Kind != failures.Cancelled || !errors.Is(f, failures.Cancelled) {
		t.Errorf("got %+v, want it cancelled", f)
	}
	if diff := cmp.Diff([]string{seed, open, turn, aclose, rclose}, b.paths()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// A url_path that would leave the base URL is a failure of the seed that says so.
func TestAToolPathThatLeavesItsServer(t *testing.T) {
	for path, has := range map[string]string{
		"/../../admin": "leaves the server's base URL", "..%2fadmin": "leaves the server's base URL", "%2e%2e/admin": "leaves the server's base URL",
		"..;/admin": "leaves the server's base URL", `\\\\evil.invalid`: "holds a character", `/mcp\r\nX: y`: "holds a character", "/m cp": "holds a character",
		"/%zz": "is no path of a URL", "/" + strings.Repeat("x", 10_000): "has 10001 bytes, more than 8192",
	} {
		seeded := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Set-Cookie", "s=1")
			_, _ = fmt.Fprintf(w, `{"resources_session_id":%q,"resources_tools":{"server_name":"m","url_path":"%s"}}`, field(t, readBody(r), "resources_session_id"), path)
		}
		b := &bubble{over: map[string]http.HandlerFunc{seed: seeded}}
		server := httptest.NewServer(b)
		config := hostileConfig(server.URL)
		config.ToolTransports = append(config.ToolTransports, "mcp")
		f := mustFail(t, newDriver(t, config).Run(soon(t), newRequest()))
		if f.Stage != failures.StageSeed || !f.Terminal || !strings.Contains(f.Reason, "resources_tools.url_path "+has) {
			t.Errorf("%.50q: got stage %s, terminal %t: %.300s", path, f.Stage, f.Terminal, f.Reason)
		}
		if diff := cmp.Diff([]string{seed, rclose}, b.paths()); diff != "" {
			t.Errorf("%.50q: calls (-want +got):\n%s", path, diff)
		}
		server.Close()
	}
}

// Ten thousand cookies are kept and carried; servers that set as many new ones with
// each reply are told apart from those that refuse them.
func TestCookiesByTheTenThousand(t *testing.T) {
	flood := func(call string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			for i := range 10_000 {
				w.Header().Add("Set-Cookie", fmt.Sprintf("%s-%d=value-of-%[2]d", call, i))
			}
			answer(w, r)
		}
	}
	once, each := map[string]http.HandlerFunc{seed: flood("seed")}, map[string]http.HandlerFunc{}
	for i, path := range []string{seed, open, turn, aclose, verify} {
		each[path] = flood(fmt.Sprintf("a-name-that-is-of-some-length-%d", i))
	}
	for _, test := range []struct {
		name string
		over map[string]http.HandlerFunc
		has  string
	}{
		{"once", once, ""},
		{"with each reply", each, "the reply of agent server helper to POST /v1/agent_sessions/close: its cookies have more than 1048576 bytes, together with those set before"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &bubble{over: test.over}
			server := httptest.NewServer(b)
			defer server.Close()
			reply := newDriver(t, hostileConfig(server.URL)).Run(soon(t), newRequest())
			if test.has == "" {
				mustSucceed(t, reply)
			} else if f := mustFail(t, reply); !f.Terminal || !strings.Contains(f.Reason, test.has) {
				t.Errorf("terminal %t: %.300s", f.Terminal, f.Reason)
			}
			if paths := b.paths(); paths[len(paths)-1] != rclose {
				t.Errorf("calls %v, want the resources close at the end", paths)
			}
		})
	}
}

// A server that refuses the cookies which it has set itself is told so.
func TestCookiesThatTheirServerRefuses(t *testing.T) {
	flood := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "s="+strings.Repeat("x", 100_000))
		answer(w, r)
	}
	tooMuch := func(w http.ResponseWriter, r *http.Request) {
		_ = readBody(r)
		w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	}
	b := &bubble{over: map[string]http.HandlerFunc{seed: flood, verify: tooMuch}}
	server := httptest.NewServer(b)
	defer server.Close()
	f := mustFail(t, newDriver(t, hostileConfig(server.URL)).Run(soon(t), newRequest()))
	const want = "resources server bench refused POST /verify (which carries 100028 bytes of its cookies) with 431 Request Header Fields Too Large"
	if !f.Terminal || !strings.HasPrefix(f.Reason, want) {
		t.Errorf("terminal %t: %.300s", f.Terminal, f.Reason)
	}
}
