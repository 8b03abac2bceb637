package resourcesserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/servers/contract"
	"example.com/turn/servers/resourcesserver"
)

// checkOf is a check of a toy with all that it can be told.
func checkOf(y *toy) resourcesserver.CheckConfig {
	return resourcesserver.CheckConfig{
		URL:              y.url,
		TaskID:           protocol.TaskID{Taskset: "toys", TaskID: "1"},
		TaskData:         json.RawMessage(`{"owner":"Ann"}`),
		Verify:           json.RawMessage(verifyBody),
		Tool:             "add",
		ToolArguments:    json.RawMessage(`{}`),
		CloseRetryWindow: toyWindow,
		IdleTimeout:      toyIdle,
		Lifetime:         toyLifetime,
		Sleep:            y.sleep,
		HoldTool:         y.holdTool,
		Releases:         y.releases,
		FailRelease:      y.failNextRelease,
	}
}

func namesOf(rules []contract.Rule) []string {
	names := []string{}
	for _, rule := range rules {
		names = append(names, rule.Name)
	}
	return names
}

func skippedIn(report contract.Report) map[string]string {
	skipped := map[string]string{}
	for _, rule := range report.Rules {
		if rule.Outcome == contract.Skipped {
			skipped[rule.Name] = rule.Why
		}
	}
	return skipped
}

func TestAServerThatKeepsTheContractPasses(t *testing.T) {
	y := newToy(t, "")
	report, err := resourcesserver.Check(t.Context(), checkOf(y))
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{}, skippedIn(report)); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if y.open() != 0 {
		t.Errorf("%d sessions are open", y.open())
	}
}

// Each rule is told of as soon as it is judged, in the order of the report.
func TestWhoeverWatchesACheckSeesEachRule(t *testing.T) {
	y := newToy(t, "scores a lost session 0")
	config := checkOf(y)
	var seen []contract.Rule
	config.Judged = func(rule contract.Rule) {
		if y.open() != 0 {
			t.Errorf("%s is told of while a session is open", rule.Name)
		}
		seen = append(seen, rule)
	}
	report, err := resourcesserver.Check(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report.Rules, seen); diff != "" {
		t.Errorf("rules (-report +seen):\n%s", diff)
	}
}

// A clock that is moved may be moved before a call has come: what is not known to be
// under way says nothing.
func TestABusySessionIsNotJudgedByAMovedClockAlone(t *testing.T) {
	y := newToy(t, "expires a busy session")
	config := checkOf(y)
	config.HoldTool = nil
	report, err := resourcesserver.Check(t.Context(), config)
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
	want := map[string]string{"busy-session-survives-idle": "with a Sleep of one's own it takes HoldTool to have a call under way meanwhile"}
	if diff := cmp.Diff(want, skippedIn(report)); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// A tool that is refused when it is called again says nothing against the server.
func TestAToolMayBeCalledOnce(t *testing.T) {
	report, err := resourcesserver.Check(t.Context(), checkOf(newToy(t, "takes one tool call a session")))
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
	report, err = resourcesserver.Check(t.Context(), checkOf(newToy(t, "takes one tool call a session, and resets it when it is seeded again")))
	if diff := cmp.Diff([]string{"seed-repeated"}, namesOf(report.Failed())); diff != "" || err != nil {
		t.Errorf("%v; failed rules (-want +got):\n%s", err, diff)
	}
}

func TestABrokenServerFailsOnExactlyItsRule(t *testing.T) {
	for broken, rule := range map[string]string{
		"echoes another id":                                          "seed",
		"sets no cookie":                                             "seed",
		"has no tools":                                               "tool",
		"gives no reward":                                            "verify",
		"changes its mind":                                           "verify-repeated",
		"takes no close with a cookie":                               "close",
		"refuses a repeated seed":                                    "seed-repeated",
		"resets a session that is seeded again":                      "seed-repeated",
		"answers every conflicting seed with 500":                    "seed-of-another-episode",
		"takes a seed of another data":                               "seed-with-other-data",
		"answers a seed of another data with 500":                    "seed-with-other-data",
		"takes a seed of another episode":                            "seed-of-another-episode",
		"answers a seed of another episode with 500":                 "seed-of-another-episode",
		"takes a seed of another task":                               "seed-of-another-task",
		"answers a seed of another task with 500":                    "seed-of-another-task",
		"answers bad task data with 500":                             "bad-task-data",
		"binds an id whose seed it refuses":                          "bad-task-data",
		"sets the cookie before refusing":                            "refused-seed-sets-no-cookie",
		"releases by the cookie only":                                "close-by-id-alone",
		"refuses a close without the cookie":                         "close-by-id-alone",
		"answers a repeated close with 404":                          "close-repeated",
		"answers a repeated close otherwise":                         "close-repeated",
		"releases again for a repeated close":                        "releases-once",
		"answers the close of an unknown id with 404":                "close-unknown",
		"tells unknown ids from closed ones":                         "closes-look-alike",
		"takes a close for another episode":                          "close-of-another-episode",
		"takes a close of a closed id for another episode":           "close-of-another-episode",
		"forgets a session when it refuses its close":                "close-of-another-episode",
		"lets a seed through after the close":                        "late-seed",
		"does not fence unknown ids":                                 "seed-after-unknown-close",
		"scores a lost session 0":                                    "verify-after-close",
		"answers the verify of a lost session with 404":              "verify-after-close",
		"gives no reason for a lost session":                         "verify-after-close",
		"answers the tool of a lost session with 500":                "tool-after-close",
		"answers the tool of a lost session with 200":                "tool-after-close",
		"answers the tool without a session from a fresh one":        "tool-after-close",
		"fences an id whose release fails":                           "failed-release",
		"names no kind for the tool of a lost session":               "tool-after-close",
		"releases once for each concurrent closer":                   "releases-once",
		"forgets the state when a release fails":                     "failed-release",
		"names no kind for a failed release":                         "failed-release",
		"forgets fences early":                                       "window-holds",
		"keeps fences for ever":                                      "window-ends",
		"renews the fence":                                           "repeated-close-does-not-renew",
		"lives for ever":                                             "expiry",
		"never gets idle":                                            "idle",
		"expires a busy session":                                     "busy-session-survives-idle",
		"offers close as a tool":                                     "reserved-routes-are-no-tools",
		"answers an agent-run seed with a list":                      "agent-run-seed",
		"takes an agent-run seed in an episode's session":            "agent-run-seed",
		"gives no cookie for a repeated seed":                        "seed-repeated",
		"forgets a session when it refuses a seed":                   "refused-seed-changes-nothing",
		"binds an id to a seed that it refuses":                      "refused-seed-changes-nothing",
		"sets a cookie when it refuses other data":                   "refused-seed-sets-no-cookie",
		"sets a cookie when it refuses a seed of an id never seeded": "refused-seed-sets-no-cookie",
		"lets a seed for another episode through after the close":    "late-seed",
		"answers a seed after the close with 500":                    "late-seed",
		"fences no id that was seeded":                               "late-seed",
		"lets a seed through after a close without a cookie":         "close-by-id-alone",
		"wants the cookie for a repeated close":                      "close-repeated",
		"takes a close of an id never seeded for another episode":    "close-of-another-episode",
		"masks a lost session once":                                  "verify-after-close",
		"keeps the fences of ids never seeded for ever":              "window-ends",
		"renews the fence for a close without a cookie":              "repeated-close-does-not-renew",
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			y := newToy(t, broken)
			report, err := resourcesserver.Check(t.Context(), checkOf(y))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{rule}, namesOf(report.Failed())); diff != "" {
				t.Errorf("failed rules (-want +got):\n%s\n%v", diff, report.Err())
			}
			if len(report.Failed()) == 1 && (report.Failed()[0].Why == "" || len(report.Failed()[0].Exchanges) == 0) {
				t.Errorf("the report does not say why: %+v", report.Failed()[0])
			}
			if text := wholeOf(t, report); strings.Contains(text, "secret-") || strings.Contains(text, "token-") {
				t.Errorf("the report shows a cookie or a token:\n%s", text)
			}
			if y.open() != 0 || len(report.LeftOpen) > 0 {
				t.Errorf("%d sessions are open, the report names %v", y.open(), report.LeftOpen)
			}
		})
	}
}

// wholeOf is a report in both of its forms.
func wholeOf(t *testing.T, report contract.Report) string {
	t.Helper()
	encoded, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	return string(encoded) + text.String()
}

// Whatever the request at which the check is ended, it leaves no session open.
func TestAnInterruptedCheckLeavesNoSessionOpen(t *testing.T) {
	y := newToy(t, "")
	if _, err := resourcesserver.Check(t.Context(), checkOf(y)); err != nil {
		t.Fatal(err)
	}
	requests := y.requests
	for n := 1; n <= requests; n++ {
		y := newToy(t, "")
		ctx, cancel := context.WithCancel(t.Context())
		y.atRequest = func(i int) {
			if i == n {
				cancel()
			}
		}
		report, err := resourcesserver.Check(ctx, checkOf(y))
		cancel()
		if !errors.Is(err, context.Canceled) && n < requests-2 { // the last ones are closes at the end
			t.Errorf("ended at request %d it says %v", n, err)
		}
		if err := report.Err(); err != nil {
			t.Errorf("ended at request %d: %v", n, err)
		}
		if y.open() != 0 {
			t.Errorf("ended at request %d it leaves %d sessions open", n, y.open())
		}
	}
}

// The kit's own server, with an environment that keeps state and a clock that moves.
// Every rule is judged on the kit, and none is skipped: its clock is moved, its tool
// can be held, and its next release can be made to fail.
func TestTheKitKeepsTheContract(t *testing.T) {
	const idle, lifetime = time.Minute, time.Hour
	clock := newClock()
	book := &book{}
	environment := listing(book)
	type hold struct{ begun, goOn chan struct{} }
	var held atomic.Pointer[hold] // for the next tool call
	call := environment.Tools[0].Call
	environment.Tools[0].Call = func(ctx context.Context, l *ledger, arguments json.RawMessage) (any, error) {
		if h := held.Swap(nil); h != nil {
			close(h.begun)
			<-h.goOn
		}
		return call(ctx, l, arguments)
	}
	var failed atomic.Bool // the next release is to fail
	environment.Release = func(ctx context.Context, l *ledger) error {
		if failed.CompareAndSwap(true, false) {
			return errors.New("the book is stuck")
		}
		return book.release(ctx, l)
	}
	server, err := resourcesserver.New(environment, resourcesserver.Config{Clock: clock.Now, IdleTimeout: idle, Lifetime: lifetime})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	report, err := resourcesserver.Check(t.Context(), resourcesserver.CheckConfig{
		URL:              b.url,
		TaskID:           protocol.TaskID{Taskset: "ledgers", TaskID: "0"},
		TaskData:         json.RawMessage(annsData),
		Verify:           json.RawMessage(verifyBody),
		Tool:             "add",
		ToolArguments:    json.RawMessage(`{"line":"x"}`),
		CloseRetryWindow: 300 * time.Second,
		IdleTimeout:      idle,
		Lifetime:         lifetime,
		Sleep: func(ctx context.Context, d time.Duration) error {
			clock.advance(d)
			server.Sweep(ctx)
			return nil
		},
		HoldTool: func() (<-chan struct{}, func()) {
			h := &hold{make(chan struct{}), make(chan struct{})}
			held.Store(h)
			return h.begun, func() { close(h.goOn) }
		},
		Releases: func() int {
			book.mu.Lock()
			defer book.mu.Unlock()
			return len(book.released)
		},
		FailRelease: func() { failed.Store(true) },
	})
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{}, skippedIn(report)); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	b.wantOpen(0)
}

// Without a clock to move, the check waits for the end of the window.
func TestACheckWaitsForTheWindow(t *testing.T) {
	const window = 500 * time.Millisecond
	b := newBench(t, resourcesserver.Config{CloseRetryWindow: window})
	report, err := resourcesserver.Check(t.Context(), resourcesserver.CheckConfig{
		URL:              b.url,
		TaskID:           protocol.TaskID{Taskset: "ledgers", TaskID: "0"},
		TaskData:         json.RawMessage(annsData),
		CloseRetryWindow: window,
	})
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
	if why, skipped := skippedIn(report)["window-ends"]; skipped {
		t.Errorf("window-ends was skipped: %s", why)
	}
	b.wantOpen(0)
}

func TestWhatIsNotGivenIsSkippedAndSaysSo(t *testing.T) {
	y := newToy(t, "")
	config := checkOf(y)
	report, err := resourcesserver.Check(t.Context(), resourcesserver.CheckConfig{URL: y.url, TaskID: config.TaskID, TaskData: config.TaskData})
	if err := errors.Join(err, report.Err()); err != nil {
		t.Fatal(err)
	}
	const (
		tool   = "no tool is given (Tool, --tool NAME:FILE)"
		verify = "no verify body is given (Verify, --verify FILE)"
		window = "how long closed ids are remembered is not given (CloseRetryWindow, --close-window D)"
		idle   = "the idle timeout is not given (IdleTimeout, --idle-timeout D)"
	)
	want := map[string]string{
		"tool": tool, "tool-after-close": tool,
		"verify": verify, "verify-repeated": verify, "verify-after-close": verify, "agent-run-seed": verify,
		"close-by-id-alone": tool + ", and " + verify, "close-of-another-episode": tool + ", and " + verify,
		"window-holds": window, "window-ends": window, "repeated-close-does-not-renew": window,
		"idle": idle, "busy-session-survives-idle": idle,
		"expiry":                       "the lifetime of a session is not given (Lifetime, --lifetime D)",
		"failed-release":               "no release failed during the check",
		"refused-seed-changes-nothing": tool + ", and " + verify,
		"releases-once":                "how often a session is released is not seen from outside (Releases of a check in Go)",
		"seed-repeated":                tool + ", and " + verify,
	}
	if diff := cmp.Diff(want, skippedIn(report)); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// What was not looked at has not passed: a fault that could not be seen is no proof
// that there is none.
func TestWhatWasNotLookedAtIsSkipped(t *testing.T) {
	const state = "whether the session keeps its state is not seen: "
	for _, test := range []struct {
		broken, rule, why string
		change            func(*resourcesserver.CheckConfig)
	}{
		{"resets a session that is seeded again", "seed-repeated", state + "no tool is given (Tool, --tool NAME:FILE)", func(c *resourcesserver.CheckConfig) { c.Tool = "" }},
		{"releases again for a repeated close", "releases-once", "how often a session is released is not seen from outside (Releases of a check in Go)", func(c *resourcesserver.CheckConfig) { c.Releases = nil }},
		{"forgets a session when it refuses its close", "close-of-another-episode", "no tool is given (Tool, --tool NAME:FILE), and no verify body is given (Verify, --verify FILE)", func(c *resourcesserver.CheckConfig) { c.Tool, c.Verify = "", nil }},
		{"releases by the cookie only", "close-by-id-alone", "the server keeps no state (Stateless, --stateless)", func(c *resourcesserver.CheckConfig) { c.Stateless = true }},
		{"takes an agent-run seed in an episode's session", "agent-run-seed", "whether it is refused in an episode's session is not seen: the server keeps no state (Stateless, --stateless)", func(c *resourcesserver.CheckConfig) { c.Stateless = true }},
	} {
		t.Run(test.broken, func(t *testing.T) {
			t.Parallel()
			y := newToy(t, test.broken)
			config := checkOf(y)
			test.change(&config)
			report, err := resourcesserver.Check(t.Context(), config)
			if err := errors.Join(err, report.Err()); err != nil {
				t.Error(err)
			}
			if got := skippedIn(report)[test.rule]; got != test.why {
				t.Errorf("%s was skipped as %q, want %q", test.rule, got, test.why)
			}
		})
	}
}

// A server that keeps nothing passes when it says so.
func TestAServerWithoutStateSkipsWhatNeedsIt(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var seed struct {
			ID   string          `json:"resources_session_id"`
			Task json.RawMessage `json:"task_id"`
			Data map[string]any  `json:"task_data"`
		}
		err := json.Unmarshal(body, &seed)
		switch {
		case r.URL.Path == "/seed_session" && (err != nil || seed.Task == nil):
			say(w, 422, `{"detail":"no"}`)
		case r.URL.Path == "/seed_session":
			http.SetCookie(w, &http.Cookie{Name: "session", Value: "the-same-for-all"})
			say(w, 200, `{"resources_session_id":%q}`, seed.ID)
		case r.URL.Path == "/verify":
			say(w, 200, `{"reward":1}`)
		default:
			say(w, 200, `{"resources_session_id":%q}`, seed.ID)
		}
	}))
	defer server.Close()
	config := checkOf(&toy{url: server.URL})
	config.Stateless, config.Releases, config.FailRelease = true, nil, nil
	report, err := resourcesserver.Check(t.Context(), config)
	if err := errors.Join(err, report.Err()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"late-seed", "verify-after-close", "tool-after-close", "expiry", "idle", "window-ends"} {
		if got := skippedIn(report)[name]; got != "the server keeps no state (Stateless, --stateless)" {
			t.Errorf("%s was skipped as %q", name, got)
		}
	}
}

// What a release that fails by itself shows is looked at, and the check goes on.
func TestAReleaseThatFailsByItselfIsJudged(t *testing.T) {
	for broken, want := range map[string][]string{"": {}, "forgets the state when a release fails": {"failed-release"}} {
		t.Run(broken, func(t *testing.T) {
			y := newToy(t, broken)
			closes := 0
			y.atClose = func() {
				closes++
				y.failRelease = closes == 5 // that of rule close
			}
			config := checkOf(y)
			config.FailRelease, config.Releases = nil, nil
			report, err := resourcesserver.Check(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, namesOf(report.Failed())); diff != "" {
				t.Errorf("failed rules (-want +got):\n%s\n%v", diff, report.Err())
			}
			if why, skipped := skippedIn(report)["failed-release"]; skipped {
				t.Errorf("the rule was skipped: %s", why)
			}
			for _, rule := range report.Failed() {
				if len(rule.Exchanges) == 0 || rule.Exchanges[0].Status != 503 {
					t.Errorf("the report does not show the close: %+v", rule.Exchanges)
				}
			}
		})
	}
}

// To look at a session whose release has failed takes one whose release may fail too.
func TestAServerWhoseFirstReleasesFailIsJudged(t *testing.T) {
	for broken, want := range map[string][]string{
		"":                                       {},
		"forgets the state when a release fails": {"failed-release"},
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			y := newToy(t, broken)
			y.failFirst = 16
			config := checkOf(y)
			config.FailRelease, config.Releases = nil, nil
			report, err := resourcesserver.Check(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, namesOf(report.Failed())); diff != "" {
				t.Errorf("failed rules (-want +got):\n%s\n%v", diff, report.Err())
			}
			for _, rule := range report.Failed() {
				if strings.Contains(rule.Why, "\n") {
					t.Errorf("one fault is reported more than once: %s", rule.Why)
				}
			}
			if why, skipped := skippedIn(report)["failed-release"]; skipped {
				t.Errorf("the rule was skipped: %s", why)
			}
			if y.most > 5 {
				t.Errorf("%d sessions were open at the same time: one for each that was looked at", y.most)
			}
			if y.open() != 0 || len(report.LeftOpen) > 0 {
				t.Errorf("%d sessions are open, the report names %v", y.open(), report.LeftOpen)
			}
		})
	}
}

// Sessions that the server will not close are named, so that somebody else can.
func TestASessionThatCannotBeClosedIsNamed(t *testing.T) {
	y := newToy(t, "closes nothing")
	config := checkOf(y)
	config.Lifetime, config.IdleTimeout = 0, 0 // or some would end by themselves
	report, err := resourcesserver.Check(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, id := range report.LeftOpen {
		if y.sessions[id] == nil {
			t.Errorf("%s is not open", id)
		}
		delete(y.sessions, id)
	}
	if len(report.LeftOpen) == 0 || len(y.sessions) != 0 {
		t.Errorf("the report names %d sessions, and lacks %d", len(report.LeftOpen), len(y.sessions))
	}
	if err := report.Err(); err == nil || !strings.Contains(err.Error(), report.LeftOpen[0]) {
		t.Errorf("the error does not name them: %v", err)
	}
}

// A release that fails at the end of a rule is tried again.
func TestACloseAtTheEndOfARuleIsTriedAgain(t *testing.T) {
	y := newToy(t, "")
	y.atClose = func() { y.failRelease = y.requests%3 == 0 }
	config := checkOf(y)
	config.FailRelease = nil
	report, err := resourcesserver.Check(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if y.open() != 0 || len(report.LeftOpen) > 0 {
		t.Errorf("%d sessions are open, the report names %v", y.open(), report.LeftOpen)
	}
}

func TestAServerThatTakesNoSeedFailsOnThat(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		why    string
	}{
		"it wants a key":  {func(w http.ResponseWriter, _ *http.Request) { say(w, 401, `{"detail":"who are you?"}`) }, "the seed got 401 Unauthorized, want 200"},
		"it redirects":    {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }, "the seed got 302 Found, want 200"},
		"it is not there": {func(w http.ResponseWriter, _ *http.Request) { say(w, 404, `nothing`) }, "the seed got 404 Not Found, want 200"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			defer server.Close()
			report, err := resourcesserver.Check(t.Context(), checkOf(&toy{url: server.URL}))
			if err != nil {
				t.Fatal(err)
			}
			failed := report.Failed()
			if len(failed) != 1 || failed[0].Name != "seed" || failed[0].Why != test.why {
				t.Errorf("failed: %+v", failed)
			}
			for name, why := range skippedIn(report) {
				if why != "no session could be opened; see rule seed" {
					t.Errorf("%s was skipped as %q", name, why)
				}
			}
			if report.Count(contract.Passed) != 0 || len(report.LeftOpen) != 0 {
				t.Errorf("%d rules passed, the report names %v", report.Count(contract.Passed), report.LeftOpen)
			}
		})
	}
}

// A page is no reply to a seed, and yet a success.
func TestAServerThatAnswersHTMLFailsOnTheSeed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hi</html>") }))
	defer server.Close()
	report, err := resourcesserver.Check(t.Context(), checkOf(&toy{url: server.URL}))
	if err != nil {
		t.Fatal(err)
	}
	if failed := report.Failed(); len(failed) != 1 || !strings.HasPrefix(failed[0].Why, "the reply is no JSON object: ") {
		t.Errorf("failed: %+v", failed)
	}
}

func TestAServerThatGivesNoAnswerIsAnError(t *testing.T) {
	const nobody = "http://127.0.0.1:1" // a port that nobody is given, unlike one that was given back
	drops := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer drops.Close()
	for _, url := range []string{nobody, drops.URL} {
		config := checkOf(&toy{url: url})
		config.CleanupTimeout = time.Second
		report, err := resourcesserver.Check(t.Context(), config)
		if want := "the server at " + url + " gives no answer: "; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
		if len(report.Rules) != 0 {
			t.Errorf("rules were judged: %+v", report.Rules)
		}
		if err != nil && report.Incomplete != err.Error() {
			t.Errorf("the report says %q of %v", report.Incomplete, err)
		}
	}
}

// What is learned of other sessions with a slow tool may not let one get idle that is
// being judged.
func TestAServerWithASlowToolPasses(t *testing.T) {
	y := newToy(t, "")
	y.toolTakes = toyIdle + time.Second
	config := checkOf(y)
	config.IdleTimeout, config.Lifetime, config.CloseRetryWindow = 0, 0, 0
	y.lives = time.Hour
	report, err := resourcesserver.Check(t.Context(), config)
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
}

// A server may close a connection that it has kept whenever it likes, also when a
// request is on its way.
func TestAServerThatClosesKeptConnectionsPasses(t *testing.T) {
	y := newToy(t, "")
	target, err := url.Parse(y.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	type calls struct{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(calls{}).(*atomic.Int32).Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, calls{}, new(atomic.Int32))
	}
	server.Start()
	defer server.Close()
	config := checkOf(y)
	config.URL = server.URL
	report, err := resourcesserver.Check(t.Context(), config)
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
	if y.open() != 0 {
		t.Errorf("%d sessions are open", y.open())
	}
}

func TestAServerThatHangsIsLeftWhenTheContextEnds(t *testing.T) {
	hanging := make(chan struct{})
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		end(&failures.Stop{Kind: failures.Cancelled, Reason: "enough"}) // the seed has come
		<-hanging
	}))
	defer server.Close()
	defer close(hanging)
	config := checkOf(&toy{url: server.URL})
	config.CleanupTimeout = 20 * time.Millisecond
	report, err := resourcesserver.Check(ctx, config)
	if want := "the check of " + server.URL + " was ended: enough"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if len(report.LeftOpen) != 1 || !strings.HasPrefix(report.LeftOpen[0], "resources-session-") {
		t.Errorf("the report names %v, want the session whose close hung too", report.LeftOpen)
	}
}

func TestAServerThatHangsIsLeftWhenTheCallsTimeIsOver(t *testing.T) {
	hanging := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hanging }))
	defer server.Close()
	defer close(hanging)
	config := checkOf(&toy{url: server.URL})
	config.CallTimeout, config.CleanupTimeout = 50*time.Millisecond, 50*time.Millisecond
	_, err := resourcesserver.Check(t.Context(), config)
	if want := "the server at " + server.URL + " gives no answer: no answer came within 50ms"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A load balancer before the server has every reply set a cookie of its own.
func TestALoadBalancersCookieIsNoSessions(t *testing.T) {
	for broken, want := range map[string][]string{"": {}, "sets the cookie before refusing": {"refused-seed-sets-no-cookie"}} {
		y := newToy(t, broken)
		behind, err := url.Parse(y.url)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(behind)
		proxy.ModifyResponse = func(r *http.Response) error { r.Header.Add("Set-Cookie", "route=7; Path=/"); return nil }
		balancer := httptest.NewServer(proxy)
		defer balancer.Close()
		config := checkOf(y)
		config.URL = balancer.URL
		report, err := resourcesserver.Check(t.Context(), config)
		if diff := cmp.Diff(want, namesOf(report.Failed())); diff != "" || err != nil {
			t.Errorf("%q: %v; failed rules (-want +got):\n%s", broken, err, diff)
		}
	}
}

func TestARouteOfTheServerIsNoTool(t *testing.T) {
	config := checkOf(&toy{url: "http://h:1"})
	config.Tool = "verify"
	if err := config.Validate(); err == nil || err.Error() != "verify is no tool but a route of the server's" {
		t.Errorf("got %v", err)
	}
}

func TestACheckConfigIsValidatedWhole(t *testing.T) {
	_, err := resourcesserver.Check(t.Context(), resourcesserver.CheckConfig{
		URL: "http://u:hush@h:1", Verify: json.RawMessage(`[]`), Tool: "a b", Lifetime: -1,
	})
	want := "checking a resources server: the server: the URL must not hold a user name or password\n" +
		"the task id lacks a taskset or a task_id\n" +
		"task_data: not JSON: the text ends where a value should be at byte 0\n" +
		"the verify body: want an object, got an array\n" +
		"the arguments of the tool: not JSON: the text ends where a value should be at byte 0\n" +
		`the tool's name "a b" must begin with a letter or digit and hold only letters, digits, '.', '_' and '-'` + "\n" +
		"Lifetime is negative"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
