package envclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/envclient"
	"example.com/turn/internal/pool"
	"example.com/turn/retry"
)

// newClient makes a client with a pool of its own, which is emptied when the test
// ends.
func newClient(t *testing.T, config envclient.Config) *envclient.Client {
	t.Helper()
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	config.Transport = transport
	if config.Resend == (retry.Resend{}) {
		config.Resend = retry.Resend{Pause: time.Microsecond}
	}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	return envclient.New(config)
}

func request() *episode.Request {
	r := &episode.Request{Params: []byte(`{"input":"<é>"}`), TaskData: []byte(`{"n": 1.0}`)}
	r.EpisodeID.RolloutID, r.EpisodeID.Attempt = "3-0", 2
	r.TaskID.Taskset, r.TaskID.TaskID = "weather", "a b"
	return r
}

const (
	ids    = `"episode_id":{"rollout_id":"3-0","attempt":2},"task_id":{"taskset":"weather","task_id":"a b"}`
	answer = `{` + ids + `,"result":{"responses_create_params":{},"response":{},"reward":0.50},"failure":null}`
)

// serve starts a server; the URL has a path before that of the calls.
func serve(t *testing.T, handler http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL + "/env/"
}

func say(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

// hangUp ends the connection without a reply.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// refusedURL is the URL of a port on which nobody listens.
func refusedURL(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return "http://" + listener.Addr().String()
}

func TestAnAttemptIsOnePOST(t *testing.T) {
	var calls []string // the reply comes after it
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls = append(calls, fmt.Sprintf("%s %s %s %d %s", r.Method, r.URL, r.Header.Get("Content-Type"), r.ContentLength, body))
		say(w, answer)
	})
	reply := newClient(t, envclient.Config{URL: url}).Run(t.Context(), request())
	if reply.Failure != nil || reply.Result == nil || reply.Result.Reward != 0.5 || reply.EpisodeID != request().EpisodeID || reply.TaskID != request().TaskID {
		t.Errorf("reply %+v", reply)
	}
	body := `{"episode_id":{"rollout_id":"3-0","attempt":2},"task":{"task_id":{"taskset":"weather","task_id":"a b"},"task_input":{"responses_create_params":{"input":"<é>"},"task_data":{"n": 1.0}}}}`
	want := []string{fmt.Sprintf("POST /env/run application/json %d %s", len(body), body)}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Whatever comes back is the attempt's failure, in words that name the server and
// the call. What may have been begun is not sent again.
func TestAReplyThatIsNone(t *testing.T) {
	const call = "environment server weather to POST /run: "
	for _, test := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
		limit  int64
		want   failures.Failure // without Err
		reason string
		lost   bool // there is an error of the connection
	}{
		{"not JSON", func(w http.ResponseWriter, _ *http.Request) { say(w, "hello") }, 0, failures.Failure{Terminal: true}, "the reply of " + call + "not JSON", false},
		{"another episode's", func(w http.ResponseWriter, _ *http.Request) { say(w, strings.Replace(answer, "3-0", "3-1", 1)) }, 0, failures.Failure{Terminal: true}, "the reply of " + call + `it is of another episode: rollout "3-1", attempt 2`, false},
		{"too large", func(w http.ResponseWriter, _ *http.Request) { say(w, answer) }, 20, failures.Failure{Terminal: true}, "the reply of " + call + "it is larger than the limit of 20 bytes", false},
		{"a refusal for good", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, 0, failures.Failure{Terminal: true, Status: 404}, "environment server weather refused POST /run with 404 Not Found", false},
		{"a refusal that may pass", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(503)
			say(w, `{"detail":"no free GPU"}`)
		}, 0, failures.Failure{Status: 503, RetryAfter: 7 * time.Second}, "environment server weather refused POST /run with 503 Service Unavailable: no free GPU", false},
		{"a redirect elsewhere", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/run")
			w.WriteHeader(307)
		}, 0, failures.Failure{Terminal: true, Status: 307}, "environment server weather refused POST /run with 307", false},
		{"no reply", func(w http.ResponseWriter, r *http.Request) { hangUp(w) }, 0, failures.Failure{Kind: failures.TransportPeerDrop}, "environment server weather did not answer POST /run: ", true},
		{"half a reply", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "10000")
			say(w, answer)
		}, 0, failures.Failure{Kind: failures.TransportPeerDrop}, "environment server weather did not answer POST /run: the connection ended within the reply", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var calls atomic.Int64
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				calls.Add(1)
				test.answer(w, r)
			})
			reply := newClient(t, envclient.Config{URL: url, Name: "weather", MaxReplyBytes: test.limit}).Run(t.Context(), request())
			if reply.Failure == nil || reply.Result != nil || reply.EpisodeID != request().EpisodeID || reply.TaskID != request().TaskID {
				t.Fatalf("reply %+v, want a failure of the request", reply)
			}
			if !strings.HasPrefix(reply.Failure.Reason, test.reason) {
				t.Errorf("reason %q, want %q", reply.Failure.Reason, test.reason)
			}
			if (reply.Failure.Err != nil) != test.lost {
				t.Errorf("under it is %v", reply.Failure.Err)
			}
			got := *reply.Failure
			got.Reason, got.Err = "", nil
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
			if calls.Load() != 1 {
				t.Errorf("it was asked %d times, want once", calls.Load())
			}
		})
	}
}

// A call that found no connection is sent again, for the server knows nothing of
// it; when there is none to the end, the failure says so.
func TestACallThatFindsNoConnectionIsSentAgain(t *testing.T) {
	reply := newClient(t, envclient.Config{URL: refusedURL(t)}).Run(t.Context(), request())
	if f := reply.Failure; f == nil || !f.Unsent || f.Kind != failures.TransportUnreachable || f.Stage != "" || f.Terminal || !strings.Contains(f.Reason, "environment server did not answer POST /run") {
		t.Errorf("failure %+v, want one that nothing was sent for", reply.Failure)
	}

	url := serve(t, func(w http.ResponseWriter, r *http.Request) { say(w, answer) })
	dials := 0
	transport := pool.New()
	defer transport.CloseIdleConnections()
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials++; dials < 3 {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return dial(ctx, network, address)
	}
	client := envclient.New(envclient.Config{URL: url, Transport: transport, Resend: retry.Resend{Max: 2, Pause: time.Microsecond}})
	if reply := client.Run(t.Context(), request()); reply.Failure != nil || dials != 3 {
		t.Errorf("after %d dials: %v, want a result after 3", dials, reply.Failure)
	}
}

// The server learns that nobody waits any more by the end of the connection.
func TestAnAttemptThatIsGivenUp(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	gone := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		stop(&failures.Stop{Kind: failures.Shutdown, Reason: "the run was stopped"})
		<-r.Context().Done()
		close(gone)
	})
	reply := newClient(t, envclient.Config{URL: url}).Run(ctx, request())
	if f := reply.Failure; f == nil || !f.CutShort() || f.Kind != failures.Shutdown || f.Unsent || !strings.Contains(f.Reason, "the run was stopped") {
		t.Errorf("failure %+v, want that the run was stopped", reply.Failure)
	}
	<-gone
}

// Attempts do not wait for each other.
func TestAttemptsAtTheSameTime(t *testing.T) {
	const many = 100
	var there sync.WaitGroup
	there.Add(many)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		there.Done()
		there.Wait() // until all are there
		say(w, answer)
	})
	client := newClient(t, envclient.Config{URL: url})
	var done atomic.Int64
	var running sync.WaitGroup
	for range many {
		running.Go(func() {
			if reply := client.Run(t.Context(), request()); reply.Result != nil {
				done.Add(1)
			}
		})
	}
	running.Wait()
	if done.Load() != many {
		t.Errorf("%d of %d have a result", done.Load(), many)
	}
}

// A body of metrics is asked for once, and closed.
func TestMetricsAreAskedForOnce(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
		says   string
	}{
		{"answered", func(w http.ResponseWriter, _ *http.Request) { say(w, `{"agent_metrics": {}}`) }, `{"agent_metrics": {}}`, ""},
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			say(w, `{"detail":"upstream is down"}`)
		}, "", "environment server refused POST /aggregate_metrics with 502 Bad Gateway: upstream is down"},
		{"dropped", func(w http.ResponseWriter, _ *http.Request) { hangUp(w) }, "", "environment server did not answer POST /aggregate_metrics"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var mu sync.Mutex
			var calls []string
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, fmt.Sprintf("%s %s %d %s", r.Method, r.URL, r.ContentLength, body))
				test.answer(w, r)
			})
			opened, closed := 0, make(chan struct{}, 9)
			got, err := newClient(t, envclient.Config{URL: url}).AggregateMetrics(t.Context(), func() (io.ReadCloser, error) {
				opened++
				return &body{strings.NewReader(`{"verify_responses":[]}`), closed}, nil
			})
			<-closed // or the test hangs
			var failure *failures.Failure
			if string(got) != test.want || test.says == "" && err != nil || test.says != "" && (!errors.As(err, &failure) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %q, %v, want %q and %q", got, err, test.want, test.says)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff([]string{`POST /env/aggregate_metrics -1 {"verify_responses":[]}`}, calls); diff != "" || opened != 1 {
				t.Errorf("opened %d times; calls (-want +got):\n%s", opened, diff)
			}
		})
	}
}

type body struct {
	*strings.Reader
	closed chan<- struct{}
}

func (b *body) Close() error { b.closed <- struct{}{}; return nil }

func TestAConfigIsValidated(t *testing.T) {
	for _, test := range []struct {
		config envclient.Config
		says   string
	}{
		{envclient.Config{URL: "http://127.0.0.1:8002"}, ""},
		{envclient.Config{URL: "https://h/env"}, ""},
		{envclient.Config{}, "environment server: want an absolute URL"},
		{envclient.Config{URL: "127.0.0.1:8002", Name: "weather"}, "environment server weather: want an absolute URL"},
		{envclient.Config{URL: "http://h", MaxReplyBytes: -1}, "limit on replies"},
		{envclient.Config{URL: "http://h", Resend: retry.Resend{Pause: -1}}, "pause"},
	} {
		err := test.config.Validate()
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%+v: got %v, want %q", test.config, err, test.says)
		}
	}
}
