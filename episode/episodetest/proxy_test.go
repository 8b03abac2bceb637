package episodetest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode/episodetest"
)

// gated is a server that replies when it is let, and says when a call has come and when
// its caller has gone.
type gated struct {
	*httptest.Server
	came, gone, reply chan struct{}
}

func newGated(t *testing.T) *gated {
	g := &gated{came: make(chan struct{}, 100), gone: make(chan struct{}, 100), reply: make(chan struct{})}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		g.came <- struct{}{}
		select {
		case <-g.reply:
			_, _ = io.WriteString(w, "late")
		case <-r.Context().Done():
			g.gone <- struct{}{}
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func await(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-within(t).Done():
		t.Fatalf("it has not happened: %s", what)
	}
}

// asking runs a call beside the test.
func asking(ctx context.Context, client *http.Client, url, body string) <-chan answer {
	done := make(chan answer, 1)
	go func() { done <- post(ctx, client, url, body) }()
	return done
}

func TestACallerThatGoesAwayIsMissedByTheServerBehind(t *testing.T) {
	server := newGated(t)
	proxy := episodetest.Start(t, server.URL, nil)
	ctx, leave := context.WithCancel(within(t))
	done := asking(ctx, newClient(t), proxy.URL()+"/v1/responses", "hello")
	await(t, "the call", server.came)
	leave()
	await(t, "the server sees that the caller has gone", server.gone)
	if a := <-done; !errors.Is(a.err, context.Canceled) {
		t.Errorf("the caller sees %v", a.err)
	}
	proxy.Close()
	if call := proxy.Calls()[0]; call.Err == nil || call.Err.Error() != "the caller went away" || call.Sent != 1 {
		t.Errorf("the log has %+v", call)
	}
}

// Who leaves during a delay does not reach the server; nobody waits for the hour.
func TestACallerMayGoAwayDuringADelay(t *testing.T) {
	for _, kind := range []episodetest.Kind{episodetest.DelayBeforeForward, episodetest.DelayBeforeReply, episodetest.DelayInReply} {
		t.Run(string(kind), func(t *testing.T) {
			server := newBehind(t)
			proxy := episodetest.Start(t, server.URL, episodetest.Script{episodetest.Verify: {{Kind: kind, Delay: time.Hour}}})
			conn := dial(t, proxy)
			say(t, conn, "POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
			until(t, "the delay", func() bool { return proxy.Injected()[kind] > 0 })
			_ = conn.Close()
			until(t, "the end of the call", func() bool { return proxy.Calls()[0].Err != nil })
			sent := 1
			if kind == episodetest.DelayBeforeForward {
				sent = 0
			}
			server.hears(t, sent)
		})
	}
}

func TestHealEndsEveryFault(t *testing.T) {
	server := newBehind(t)
	proxy := episodetest.Start(t, server.URL, episodetest.PlanFunc(func(call episodetest.Call) episodetest.Fault {
		if call.Route == episodetest.Verify {
			return episodetest.Fault{Kind: episodetest.DelayBeforeReply, Delay: time.Hour}
		}
		return episodetest.Fault{Kind: episodetest.DropBeforeRead}
	}))
	client := newClient(t)
	done := asking(within(t), client, proxy.URL()+"/verify", "hello")
	until(t, "the delay", func() bool { return proxy.Injected()[episodetest.DelayBeforeReply] > 0 })
	if a := post(within(t), client, proxy.URL()+"/seed_session", "hello"); !dropped(a) {
		t.Errorf("before it heals the caller sees %+v", a)
	}
	proxy.Refuse()
	fresh := newClient(t)
	if a := post(within(t), fresh, proxy.URL()+"/seed_session", "hello"); !errors.Is(a.err, syscall.ECONNREFUSED) {
		t.Errorf("while it is away the caller sees %+v", a)
	}
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	if a := <-done; !whole(a) {
		t.Errorf("the delayed caller sees %+v", a)
	}
	if a := post(within(t), fresh, proxy.URL()+"/seed_session", "hello"); !whole(a) {
		t.Errorf("afterwards the caller sees %+v", a)
	}
}

// While the proxy is away its port is given to nobody else, and it can be back.
func TestTheProxyMayBeAwayOften(t *testing.T) {
	server := newBehind(t)
	proxy := episodetest.Start(t, server.URL, nil)
	url := proxy.URL()
	for range 20 {
		client := newClient(t)
		if a := post(within(t), client, url, "hello"); !whole(a) {
			t.Fatalf("the caller sees %+v", a)
		}
		server.hears(t, 1)
		proxy.Refuse()
		proxy.Refuse()
		if a := post(within(t), client, url, "hello"); !whole(a) || !a.reused {
			t.Fatalf("on an open connection the caller sees %+v", a)
		}
		server.hears(t, 1)
		if n := proxy.Cut(); n < 1 {
			t.Errorf("%d connections were cut", n)
		}
		if a := post(within(t), newClient(t), url, "hello"); !errors.Is(a.err, syscall.ECONNREFUSED) {
			t.Fatalf("while it is away the caller sees %+v", a)
		}
		if err := proxy.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	if proxy.URL() != url {
		t.Errorf("the URL is %s, was %s", proxy.URL(), url)
	}
}

func TestCutResetsEveryOpenConnection(t *testing.T) {
	server := newGated(t)
	proxy := episodetest.Start(t, server.URL, nil)
	client := newClient(t)
	var calls []<-chan answer
	for range 5 {
		calls = append(calls, asking(within(t), client, proxy.URL()+"/verify", "hello"))
		await(t, "a call", server.came)
	}
	if n := proxy.Cut(); n != 5 {
		t.Errorf("%d connections were cut, want 5", n)
	}
	for _, call := range calls {
		if a := <-call; !wasReset(a) {
			t.Errorf("a caller sees %+v", a)
		}
		await(t, "the server sees that the caller has gone", server.gone)
	}
	close(server.reply)
	if a := post(within(t), client, proxy.URL()+"/verify", "hello"); a.body != "late" {
		t.Errorf("afterwards the caller sees %+v", a)
	}
}

func TestCloseEndsWhatRunsAndMayBeCalledAgain(t *testing.T) {
	server := newGated(t)
	proxy, err := episodetest.NewProxy(episodetest.Config{Target: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	done := asking(within(t), newClient(t), proxy.URL()+"/verify", "hello")
	await(t, "the call", server.came)
	var closing sync.WaitGroup
	for range 3 {
		closing.Go(proxy.Close)
	}
	closing.Wait()
	if a := <-done; a.err == nil {
		t.Errorf("the caller sees %+v", a)
	}
	await(t, "the server sees that the caller has gone", server.gone)
	if err := proxy.Heal(); err != nil {
		t.Error(err)
	}
	if a := post(within(t), newClient(t), proxy.URL(), "hello"); !errors.Is(a.err, syscall.ECONNREFUSED) {
		t.Errorf("afterwards a caller sees %+v", a)
	}
}

// What the server behind does to its connection is done to the caller's.
func TestTheEndOfAnIdleConnectionIsPassedOn(t *testing.T) {
	server := newRaw(t, "\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n", func(net.Conn) {})
	proxy := episodetest.Start(t, server.url, nil)
	conn := dial(t, proxy)
	say(t, conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if got, err := io.ReadAll(conn); err != nil || string(got) != "HTTP/1.1 204 No Content\r\n\r\n" {
		t.Errorf("the caller sees %q, %v", got, err)
	}
}

func TestAReplyThatTheServerBreaksOffIsBrokenOff(t *testing.T) {
	const half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"
	for _, test := range []struct {
		text  string
		reset bool
	}{{half, false}, {half, true}, {"HTTP/1.1 20", false}, {"", false}, {"", true}, {"what is this\r\n\r\nindeed", false}} {
		t.Run(fmt.Sprintf("%q, reset %t", test.text, test.reset), func(t *testing.T) {
			server := newRaw(t, "\r\n\r\n", test.text, func(conn net.Conn) {
				if test.reset {
					time.Sleep(20 * time.Millisecond) // a reset may overtake what comes before it; neither way is wrong
					_ = conn.(*net.TCPConn).SetLinger(0)
				}
			})
			proxy := episodetest.Start(t, server.url, nil)
			conn := dial(t, proxy)
			say(t, conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			got, err := io.ReadAll(conn)
			if errors.Is(err, syscall.ECONNRESET) != test.reset || !test.reset && (err != nil || string(got) != test.text) {
				t.Errorf("the caller sees %q, %v", got, err)
			}
		})
	}
}

func TestAServerThatIsNotThereIsSaid(t *testing.T) {
	proxy := episodetest.Start(t, "http://127.0.0.1:1", nil) // a port that nobody is given
	got := post(within(t), newClient(t), proxy.URL()+"/verify", "hello")
	if !wasReset(got) {
		t.Errorf("the caller sees %+v", got)
	}
	if call := proxy.Calls()[0]; !errors.Is(call.Err, syscall.ECONNREFUSED) || call.Sent != 0 {
		t.Errorf("the log has %+v", call)
	}
}

// A server may reply before it has read the request, and the caller may wait to be told
// to send it.
func TestAServerMayReplyEarly(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" && r.URL.Path == "/wanted" {
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprint(w, len(body))
			return
		}
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
	}))
	t.Cleanup(server.Close)
	proxy := episodetest.Start(t, server.URL, nil)
	transport := &http.Transport{ExpectContinueTimeout: time.Hour}
	t.Cleanup(transport.CloseIdleConnections)
	large := strings.Repeat("x", 8<<20)
	for _, test := range []struct {
		path, expect string
		fault        episodetest.Kind
		status       int
		body         string
	}{
		{"/unwanted", "", "", 413, "too large\n"},
		{"/unwanted", "100-continue", "", 413, "too large\n"},
		{"/wanted", "100-continue", "", 200, fmt.Sprint(len(large))},
		{"/wanted", "100-continue", episodetest.Duplicate, 200, fmt.Sprint(len(large))},
		{"/wanted", "100-continue", episodetest.Answer, 200, ""},
	} {
		t.Run(fmt.Sprintf("%s, expecting %q, %s", test.path, test.expect, test.fault), func(t *testing.T) {
			proxy.SetPlan(episodetest.Script{episodetest.Other: {{Kind: test.fault}}})
			request, err := http.NewRequestWithContext(within(t), http.MethodPost, proxy.URL()+test.path, strings.NewReader(large))
			if err != nil {
				t.Fatal(err)
			}
			if test.expect != "" {
				request.Header.Set("Expect", test.expect)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || response.StatusCode != test.status || string(body) != test.body {
				t.Errorf("the caller sees %d, %q, %v, want %d, %q", response.StatusCode, body, err, test.status, test.body)
			}
		})
	}
}

// A reply goes on as it comes: nothing waits for its end.
func TestAStreamIsNotHeldBack(t *testing.T) {
	more := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: 1\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "data: 2\n")
	}))
	t.Cleanup(server.Close)
	proxy := episodetest.Start(t, server.URL, nil)
	request, err := http.NewRequestWithContext(within(t), http.MethodGet, proxy.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := newClient(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Fatalf("first came %q, %v", line, err)
	}
	close(more)
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "data: 2\n" {
		t.Errorf("then came %q, %v", rest, err)
	}
}

func TestLargeMessagesPassWithoutBeingKept(t *testing.T) {
	const size = 128 << 20
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
			t.Errorf("the server read %d bytes, %v", n, err)
		}
		w.Header().Set("Content-Length", strconv.Itoa(size))
		_, _ = io.CopyN(w, zeros{}, size)
	}))
	t.Cleanup(server.Close)
	for _, test := range []struct {
		fault episodetest.Fault
		came  int64
	}{
		{episodetest.Fault{}, size},
		{episodetest.Fault{Kind: episodetest.Duplicate}, size}, // the body is too long for that
		{episodetest.Fault{Kind: episodetest.ShortenReply, Offset: size - 1}, size - 1},
	} {
		t.Run(test.fault.String(), func(t *testing.T) {
			proxy := episodetest.Start(t, server.URL, episodetest.Script{episodetest.Other: {test.fault}})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			request, err := http.NewRequestWithContext(within(t), http.MethodPost, proxy.URL(), io.LimitReader(zeros{}, size))
			if err != nil {
				t.Fatal(err)
			}
			request.ContentLength = size
			response, err := newClient(t).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if n != test.came || err != nil {
				t.Errorf("%d bytes came, %v, want %d", n, err, test.came)
			}
			runtime.ReadMemStats(&after)
			// A duplicate keeps 16 MiB until it knows that there is more, and
			// has made room for it several times.
			if used := after.TotalAlloc - before.TotalAlloc; used > size/4*3 {
				t.Errorf("%d bytes were allocated for %d", used, size)
			}
			if call := proxy.Calls()[0]; call.Sent != 1 || call.Injected != (test.came < size) {
				t.Errorf("the log has %+v", call)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestRoutesAreTheProtocols(t *testing.T) {
	server := newBehind(t)
	proxy := episodetest.Start(t, server.URL+"/v1", nil)
	if !strings.HasSuffix(proxy.URL(), "/v1") {
		t.Errorf("the URL %s has lost the target's path", proxy.URL())
	}
	host := strings.TrimSuffix(proxy.URL(), "/v1")
	client := newClient(t)
	var got []string
	for _, path := range []string{"/seed_session", "/ng-rollout/k/verify", "/close_session", "/aggregate_metrics", "/v1/agent_sessions", "/ng-rollout/k/training-token-capture/v1/responses", "/v1/agent_sessions/close", "/run", "/get_weather", "/seed_session?x=%2F"} {
		if a := post(within(t), client, host+path, "hello"); !whole(a) {
			t.Fatalf("%s: %+v", path, a)
		}
		<-server.heard
	}
	response, err := client.Get(host + "/verify")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	for _, call := range proxy.Calls() {
		got = append(got, fmt.Sprint(call.Method, " ", call.Path, " ", call.Route, " ", call.Nth))
	}
	want := []string{
		"POST /seed_session seed 1", "POST /ng-rollout/k/verify verify 1", "POST /close_session close_session 1", "POST /aggregate_metrics resources_metrics 1",
		"POST /v1/agent_sessions agent_seed 1", "POST /ng-rollout/k/training-token-capture/v1/responses responses 1", "POST /v1/agent_sessions/close agent_close 1",
		"POST /run run 1", "POST /get_weather other 1", "POST /seed_session seed 2", "GET /verify other 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestReplyWithoutABody(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", "5")
			return
		}
		w.WriteHeader(http.StatusNotModified)
	}))
	t.Cleanup(server.Close)
	proxy := episodetest.Start(t, server.URL, nil)
	client := newClient(t)
	for _, method := range []string{http.MethodHead, http.MethodGet, http.MethodHead} {
		request, err := http.NewRequestWithContext(within(t), method, proxy.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if want := map[string]int{"HEAD": 200, "GET": 304}[method]; response.StatusCode != want {
			t.Errorf("%s: %d, want %d", method, response.StatusCode, want)
		}
	}
}

func TestTheLastCallsAreKept(t *testing.T) {
	server := newBehind(t)
	proxy, err := episodetest.NewProxy(episodetest.Config{Target: server.URL, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	client := newClient(t)
	for range 5 {
		post(within(t), client, proxy.URL()+"/verify", "hello")
	}
	calls := proxy.Calls()
	if len(calls) != 2 || calls[0].Nth != 4 || calls[1].Nth != 5 {
		t.Errorf("the log has %+v", calls)
	}
}

func TestConfigurationsAtFaultAreRefused(t *testing.T) {
	for _, config := range []episodetest.Config{
		{},
		{Target: "127.0.0.1:8000"},
		{Target: "https://127.0.0.1:8000"},
		{Target: "http://127.0.0.1:8000/?a=b"},
		{Target: "http://127.0.0.1:8000", Keep: -1},
		{Target: "http://127.0.0.1:8000", Plan: episodetest.Script{"sed": nil}},
		{Target: "http://127.0.0.1:8000", Plan: episodetest.Script{episodetest.Seed: {{}, {Offset: 1}}}},
		{Target: "http://127.0.0.1:8000", Plan: episodetest.Random(1, 1.5)},
		{Target: "http://127.0.0.1:8000", Plan: episodetest.Random(1, 1, "sometimes")},
	} {
		if proxy, err := episodetest.NewProxy(config); err == nil {
			proxy.Close()
			t.Errorf("%+v: no complaint", config)
		}
	}
	err := episodetest.Config{Keep: -1, Plan: episodetest.Script{"sed": {{Offset: 1}}}}.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("want four complaints: %v", err)
	}
}
