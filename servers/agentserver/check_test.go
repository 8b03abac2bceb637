package agentserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/contract"
)

func checkOf(url string, sleep func(context.Context, time.Duration) error) agentserver.CheckConfig {
	return agentserver.CheckConfig{
		URL:              url,
		TaskID:           protocol.TaskID{Taskset: "toys", TaskID: "1"},
		Params:           json.RawMessage(`{"input":"hi"}`),
		CloseRetryWindow: toyWindow,
		Sleep:            sleep,
	}
}

func namesOf(report contract.Report, outcome contract.Outcome) []string {
	names := []string{}
	for _, rule := range report.Rules {
		if rule.Outcome == outcome {
			names = append(names, rule.Name)
		}
	}
	return names
}

func TestAServerThatKeepsTheContractPasses(t *testing.T) {
	y := newToy(t, "")
	kit := newBench(t, agentserver.Config{})
	pass := func(_ context.Context, d time.Duration) error {
		kit.pass(d)
		return nil
	}
	for name, config := range map[string]agentserver.CheckConfig{"the toy": checkOf(y.url, y.sleep), "the kit": checkOf(kit.url, pass)} {
		t.Run(name, func(t *testing.T) {
			report, err := agentserver.Check(t.Context(), config)
			if err := errors.Join(err, report.Err()); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{}, namesOf(report, contract.Skipped)); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
	if y.open() != 0 || kit.server.Open() != 0 {
		t.Errorf("%d and %d sessions are open", y.open(), kit.server.Open())
	}
}

func TestABrokenServerFailsOnExactlyItsRule(t *testing.T) {
	for broken, rule := range map[string]string{
		"echoes another id":                                       "seed",
		"sets no cookie":                                          "seed",
		"gives no output":                                         "responses",
		"takes no close with a cookie":                            "close",
		"answers a repeated seed otherwise":                       "seed-repeated",
		"takes another body":                                      "seed-with-another-body",
		"answers every conflicting seed with 500":                 "seed-with-another-body",
		"answers another body with 500":                           "seed-with-another-body",
		"lets a seed through after the close":                     "late-seed",
		"takes two tools of one name":                             "seed-with-two-tools-of-one-name",
		"answers two tools of one name with 500":                  "seed-with-two-tools-of-one-name",
		"takes any required tool":                                 "seed-with-unknown-required-tool",
		"answers a required tool with 500":                        "seed-with-unknown-required-tool",
		"sets the cookie before refusing":                         "refused-seed-sets-no-cookie",
		"answers anybody":                                         "responses-without-session",
		"answers when closed":                                     "responses-after-close",
		"releases by the cookie only":                             "close-by-id-alone",
		"forgets the receipt":                                     "close-repeated",
		"answers the close of an unknown id with 404":             "close-unknown",
		"does not fence unknown ids":                              "seed-after-unknown-close",
		"takes a close for another episode":                       "close-of-another-episode",
		"takes a close of a closed id for another episode":        "close-of-another-episode",
		"forgets fences early":                                    "window-holds",
		"keeps fences for ever":                                   "window-ends",
		"renews the fence":                                        "repeated-close-does-not-renew",
		"gives no cookie for a repeated seed":                     "seed-repeated",
		"gives a new cookie for a repeated seed":                  "seed-repeated",
		"takes other tools":                                       "seed-with-another-body",
		"binds an id to a seed that it refuses":                   "seed-with-another-body",
		"lets a seed for another episode through after the close": "late-seed",
		"answers a seed after the close with 500":                 "late-seed",
		"fences no id that was seeded":                            "late-seed",
		"sets a cookie when it refuses other tools":               "refused-seed-sets-no-cookie",
		"fences an id and keeps its session without the cookie":   "close-by-id-alone",
		"forgets the receipt without the cookie":                  "close-repeated",
		"takes a close of an id never seeded for another episode": "close-of-another-episode",
		"keeps the fences of ids never seeded for ever":           "window-ends",
		"renews the fence for a close without a cookie":           "repeated-close-does-not-renew",
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			y := newToy(t, broken)
			report, err := agentserver.Check(t.Context(), checkOf(y.url, y.sleep))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{rule}, namesOf(report, contract.Failed)); diff != "" {
				t.Errorf("failed rules (-want +got):\n%s\n%v", diff, report.Err())
			}
			if text, err := json.Marshal(report); err != nil || strings.Contains(string(text), "secret-") {
				t.Errorf("the report shows a cookie, or nothing: %v\n%s", err, text)
			}
			if y.open() != 0 || len(report.LeftOpen) > 0 {
				t.Errorf("%d sessions are open, the report names %v", y.open(), report.LeftOpen)
			}
		})
	}
}

// Whatever the request at which the check is ended, it leaves no session open.
func TestAnInterruptedCheckLeavesNoSessionOpen(t *testing.T) {
	whole := newToy(t, "")
	if _, err := agentserver.Check(t.Context(), checkOf(whole.url, whole.sleep)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= whole.requests; n++ {
		y := newToy(t, "")
		ctx, cancel := context.WithCancel(t.Context())
		y.atRequest = func(i int) {
			if i == n {
				cancel()
			}
		}
		report, err := agentserver.Check(ctx, checkOf(y.url, y.sleep))
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended at request %d it says %v", n, err)
		}
		if err := report.Err(); err != nil || y.open() != 0 {
			t.Errorf("ended at request %d it leaves %d sessions open: %v", n, y.open(), err)
		}
	}
}

func TestWhatIsNotGivenIsSkippedAndSaysSo(t *testing.T) {
	y := newToy(t, "")
	report, err := agentserver.Check(t.Context(), agentserver.CheckConfig{URL: y.url, TaskID: protocol.TaskID{Taskset: "toys", TaskID: "1"}})
	if err := errors.Join(err, report.Err()); err != nil {
		t.Fatal(err)
	}
	const turn, window = "no turn is given (Params, responses_create_params in the file of --seed)", "how long closed ids are remembered is not given (CloseRetryWindow, --close-window D)"
	want := map[string]string{
		"seed-repeated":     "whether the cookie serves for a turn is not seen: " + turn,
		"close-by-id-alone": "whether the session has ended is not seen: " + turn,
		"responses":         turn, "responses-without-session": turn, "responses-after-close": turn,
		"window-holds": window, "window-ends": window, "repeated-close-does-not-renew": window,
	}
	got := map[string]string{}
	for _, rule := range report.Rules {
		if rule.Outcome == contract.Skipped {
			got[rule.Name] = rule.Why
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

// Tools that the agent has no way to are the check's own fault.
func TestAToolWithoutAnAccessIsHintedAt(t *testing.T) {
	b := newBench(t, agentserver.Config{})
	b.model.replies = []string{calls("look", `{}`), says("done")}
	config := agentserver.CheckConfig{
		URL:    b.url,
		TaskID: protocol.TaskID{Taskset: "s", TaskID: "0"},
		Params: json.RawMessage(`{"input":"hi","tools":[{"type":"function","name":"look"}]}`),
	}
	report, err := agentserver.Check(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if failed := report.Failed(); len(failed) == 0 || failed[0].Name != "responses" || !strings.Contains(failed[0].Why, "no tool_accesses: add these") {
		t.Errorf("failed rules: %v", report.Err())
	}
}

func TestACheckConfigIsValidatedWhole(t *testing.T) {
	_, err := agentserver.Check(t.Context(), agentserver.CheckConfig{
		URL: "http://h:1?token=hush", ToolAccesses: json.RawMessage(`{}`), Params: json.RawMessage(`[]`), CloseRetryWindow: -1,
	})
	want := "checking an agent server: the server: the URL must not have a query or a fragment\n" +
		"the task id lacks a taskset or a task_id\ntool_accesses is no JSON array\n" +
		"responses_create_params: want an object, got an array\nCloseRetryWindow is negative"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
