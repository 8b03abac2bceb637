package collect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/envserver"
	"example.com/turn/internal/scripted"
	"example.com/turn/retry"
)

// An asked is what a test looks at of the body of POST /run.
type asked struct {
	EpisodeID json.RawMessage `json:"episode_id"`
	Task      struct {
		TaskID json.RawMessage `json:"task_id"`
		Input  struct {
			Data struct{ N int } `json:"task_data"`
		} `json:"task_input"`
	} `json:"task"`
}

// reply is the reply to what was asked: with its ids, and what else a test says.
func (a asked) reply(rest string) string {
	return fmt.Sprintf(`{"episode_id":%s,"task_id":%s,%s}`, a.EpisodeID, a.Task.TaskID, rest)
}

const goodResult = `"result":{"responses_create_params":{},"response":{},"reward":1},"failure":null`

// newEnvironment starts an environment server. run answers POST /run; other is the
// rest of it.
func newEnvironment(t *testing.T, run func(w http.ResponseWriter, a asked), other http.HandlerFunc) *environment {
	t.Helper()
	e := &environment{bodies: map[string][]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller has gone
		}
		e.mu.Lock()
		e.bodies[r.URL.Path] = append(e.bodies[r.URL.Path], string(body))
		e.mu.Unlock()
		if r.URL.Path != "/run" {
			if other == nil {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			other(w, r)
			return
		}
		var a asked
		if err := json.Unmarshal(body, &a); err != nil {
			t.Errorf("POST /run has the body %s: %v", body, err)
		}
		run(w, a)
	}))
	t.Cleanup(server.Close)
	e.URL = server.URL
	return e
}

// Whatever an environment server makes of one task, it is that task's failure, in
// a row that says what happened, and the others have their results. A server that
// may have begun an episode is not asked for it again, save as another attempt.
func TestWhatAnEnvironmentServerMayDo(t *testing.T) {
	send := func(text string) func(http.ResponseWriter, asked) {
		return func(w http.ResponseWriter, _ asked) { say(w, text) }
	}
	status := func(code int, text string) func(http.ResponseWriter, asked) {
		return func(w http.ResponseWriter, _ asked) { w.WriteHeader(code); say(w, text) }
	}
	rest := func(text string) func(http.ResponseWriter, asked) {
		return func(w http.ResponseWriter, a asked) { say(w, a.reply(text)) }
	}
	stage := func(s string) *string { return &s }
	final := line{Terminal: true, Delivery: "delivered"}
	passing := line{Delivery: "delivered"}
	lost := line{Delivery: "possibly_delivered", Kind: "transport_peer_drop"}
	for _, test := range []struct {
		name string
		bad  func(http.ResponseWriter, asked)
		want line // with Reason a part of it
		says string
	}{
		{"no JSON", send("oops"), final, "JSON"},
		{"a page", func(w http.ResponseWriter, _ asked) {
			w.Header().Set("Content-Type", "text/html")
			say(w, "<html><body>It works!</body></html>")
		}, final, "the reply of environment server to POST /run: not JSON"},
		{"nothing", send(""), final, "POST /run"},
		{"an array", send("[]"), final, "an object"},
		{"no ids", send("{" + goodResult + "}"), final, "episode_id"},
		{"another rollout's id", func(w http.ResponseWriter, a asked) {
			say(w, strings.Replace(a.reply(goodResult), `"3-0"`, `"4-0"`, 1))
		}, final, `another episode: rollout "4-0"`},
		{"another attempt's id", func(w http.ResponseWriter, a asked) {
			say(w, strings.Replace(a.reply(goodResult), `"attempt":0`, `"attempt":1`, 1))
		}, final, "another episode"},
		{"another task's id", func(w http.ResponseWriter, a asked) {
			a.Task.TaskID = []byte(`{"taskset":"tasks","task_id":"4"}`)
			say(w, a.reply(goodResult))
		}, final, "another task"},
		{"a result and a failure", rest(strings.Replace(goodResult, "null", `{"failure_reason":"x","terminal":false}`, 1)), final, "both"},
		{"neither", rest(`"result":null,"failure":null`), final, "neither"},
		{"neither is named", rest(`"x":1`), final, "neither"},
		{"a result without a reward", rest(`"result":{"responses_create_params":{},"response":{}}`), final, "reward"},
		{"a reward that is no number", rest(strings.Replace(goodResult, ":1}", ":null}", 1)), final, "reward"},
		{"a failure that is no object", rest(`"failure":"busy"`), final, "failure"},
		{"a failure that may be final or not", rest(`"failure":{"failure_reason":"x"}`), final, "terminal"},
		{"a refusal for good", status(422, `{"detail":[{"loc":["body","task"],"msg":"no such task"}]}`), final, "422 Unprocessable Entity: body.task: no such task"},
		{"a refusal that may pass", status(503, `{"detail":"no free GPU"}`), passing, "no free GPU"},
		{"an error", status(500, "boom"), passing, "boom"},
		{"an end before the reply", func(w http.ResponseWriter, _ asked) { hangUp(w, false) }, lost, "did not answer POST /run"},
		{"a reset before the reply", func(w http.ResponseWriter, _ asked) { hangUp(w, true) }, lost, "did not answer POST /run"},
		{"half a reply", func(w http.ResponseWriter, a asked) {
			w.Header().Set("Content-Length", "1000")
			say(w, a.reply(goodResult))
		}, lost, "did not answer POST /run"},
		{"a failure of its own", rest(`"failure":{"failure_reason":"the model is down","terminal":false,"failure_kind":"agent_run_error","stage":"agent","partial_response":{"output":[]}}`),
			line{Delivery: "delivered", Stage: stage("agent"), Kind: "agent_run_error", Partial: []byte(`{"output":[]}`)}, "the model is down"},
		{"a failure for good", rest(`"result":null,"failure":{"failure_reason":"no such city","terminal":true,"stage":"seed","partial_response":null}`),
			line{Delivery: "delivered", Terminal: true, Stage: stage("seed")}, "no such city"},
		{"a failure without a stage, of an odd kind", rest(`"failure":{"failure_reason":"","terminal":false,"failure_kind":"Very Odd"}`), passing, "no reason was given"},
		{"a failure before anything was called", rest(`"failure":{"failure_reason":"Episode admission timed out","terminal":false,"stage":"admission"}`),
			line{Delivery: "delivered", Stage: stage("admission")}, "admission timed out"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnvironment(t, func(w http.ResponseWriter, a asked) {
				if a.Task.Input.Data.N == 3 {
					test.bad(w, a)
					return
				}
				say(w, a.reply(goodResult))
			}, nil)
			b := onStage(t, flat(5), only(t, e.URL))
			b.config.Policy.MaxAttempts = 2
			summary := b.run(t)
			attempts := 2
			if test.want.Terminal {
				attempts = 1
			}
			if summary.Done != 4 || summary.Failed != 1 || summary.Attempts != 4+attempts {
				t.Errorf("summary %+v, want 4 done and 1 failed in %d attempts", summary, 4+attempts)
			}
			if diff := cmp.Diff([]string{"0-0", "1-0", "2-0", "4-0"}, pairs(b.results(t))); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			rows := b.failures(t)
			if len(rows) != attempts || len(e.got("/run")) != 4+attempts {
				t.Fatalf("%d failure rows after %d calls, want %d and %d", len(rows), len(e.got("/run")), attempts, 4+attempts)
			}
			for i, row := range rows {
				if !strings.Contains(row.Reason, test.says) || row.Message != row.Reason {
					t.Errorf("reason %q and message %q, want one with %q", row.Reason, row.Message, test.says)
				}
				want := test.want
				want.TaskIndex, want.AttemptIndex = 3, int64(i)
				want.TaskID, want.Server = map[string]string{"taskset": "tasks", "task_id": "3"}, "env"
				row.Reason, row.Message = "", ""
				if diff := cmp.Diff(want, row); diff != "" {
					t.Errorf("row %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// A server that drops the connection before it has read the episode may have begun
// it all the same, also when the episode is large.
func TestAConnectionThatEndsBeforeTheEpisodeWasRead(t *testing.T) {
	for name, size := range map[string]int{"small": 10, "large": 8 << 20} {
		t.Run(name, func(t *testing.T) {
			calls := make(chan struct{}, 100)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls <- struct{}{}
				hangUp(w, true)
			}))
			defer server.Close()
			b := onStage(t, `{"responses_create_params":{"input":"`+strings.Repeat("x", size)+`"}}`, only(t, server.URL))
			summary := b.run(t)
			rows := b.failures(t)
			if summary.Failed != 1 || len(rows) != 3 || len(calls) != 3 {
				t.Fatalf("summary %+v with %d rows after %d calls, want one call for each of three attempts", summary, len(rows), len(calls))
			}
			for _, row := range rows {
				if row.Delivery != "possibly_delivered" || row.Kind != "transport_peer_drop" || row.Terminal || row.Stage != nil {
					t.Errorf("row %+v, want one that was possibly delivered", row)
				}
			}
		})
	}
}

// Where nobody listens nothing was sent, and the call may be tried again within the
// attempt.
func TestAnEnvironmentServerThatIsNotThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	there := newEnvironment(t, func(w http.ResponseWriter, a asked) { say(w, a.reply(goodResult)) }, nil)
	targets := only(t, there.URL)
	targets.Routes = map[string]collect.Environment{"gone": {Client: client(t, "http://"+listener.Addr().String()), Name: "gone_env"}}
	b := onStage(t, flat(2)+`{"responses_create_params":{},"task_source":"gone"}`, targets)
	b.config.Policy.MaxAttempts = 2
	if summary := b.run(t); summary.Done != 2 || summary.Failed != 1 {
		t.Errorf("summary %+v, want 2 done and 1 failed", summary)
	}
	rows := b.failures(t)
	if len(rows) != 2 {
		t.Fatalf("failures %+v, want two", rows)
	}
	for _, row := range rows {
		if row.Delivery != "not_sent" || row.Kind != "transport_unreachable" || row.Terminal || row.Stage != nil || row.Server != "gone_env" {
			t.Errorf("row %+v, want one that was not sent", row)
		}
	}
}

// What an attempt of our own driver got to its first server.
func TestWhetherAnEpisodeReachedItsServer(t *testing.T) {
	for _, test := range []struct {
		name   string
		script scripted.Script
		want   string
	}{
		{"a seed that is refused", scripted.Script{scripted.Seed: {{Status: 422}}}, "delivered"},
		{"a seed whose reply is lost", scripted.Script{scripted.Seed: {{Drop: scripted.AfterRead}}}, "possibly_delivered"},
		{"a seed that answers nonsense", scripted.Script{scripted.Seed: {{Raw: text("[]")}}}, "delivered"},
		{"an agent whose reply is lost", scripted.Script{scripted.Responses: {{Drop: scripted.AfterRead}}}, "delivered"},
		{"a verifier that is refused", scripted.Script{scripted.Verify: {{Status: 500}}}, "delivered"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, flat(1))
			b.config.Policy.MaxAttempts = 1
			b.Play(test.script)
			b.run(t)
			if rows := b.failures(t); len(rows) != 1 || rows[0].Delivery != test.want {
				t.Errorf("failures %+v, want one that is %s", rows, test.want)
			}
		})
	}
}

// Of servers the seed tells what they got; of an environment server, the only call does.
func TestWhatWasDelivered(t *testing.T) {
	of := func(stage failures.Stage, change func(*failures.Failure)) *failures.Failure {
		f := failures.New(stage, "", "x")
		change(f)
		return f
	}
	nothing := func(*failures.Failure) {}
	unsent := func(f *failures.Failure) { f.Err, f.Unsent = io.ErrUnexpectedEOF, true }
	lost := func(f *failures.Failure) { f.Err = io.ErrUnexpectedEOF }
	refused := func(f *failures.Failure) { f.Err, f.Status = io.ErrUnexpectedEOF, 500 }
	for _, test := range []struct {
		name                  string
		failure               *failures.Failure
		servers, environments collect.Delivery
	}{
		{"nothing was called yet", of(failures.StageAdmission, nothing), collect.NotSent, collect.Delivered},
		{"a seed of which no byte was sent", of(failures.StageSeed, unsent), collect.NotSent, collect.NotSent},
		{"a seed without a reply", of(failures.StageSeed, lost), collect.PossiblyDelivered, collect.PossiblyDelivered},
		{"a seed that was refused", of(failures.StageSeed, refused), collect.Delivered, collect.Delivered},
		{"a seed that failed", of(failures.StageSeed, nothing), collect.Delivered, collect.Delivered},
		{"an agent to which no byte was sent", of(failures.StageAgent, unsent), collect.Delivered, collect.NotSent},
		{"an agent without a reply", of(failures.StageAgent, lost), collect.Delivered, collect.PossiblyDelivered},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := (collect.Servers{}).Delivery(test.failure); got != test.servers {
				t.Errorf("of servers: %s, want %s", got, test.servers)
			}
			if got := (collect.Environments{}).Delivery(test.failure); got != test.environments {
				t.Errorf("of environment servers: %s, want %s", got, test.environments)
			}
		})
	}
}

// A hundred tasks, of which one is always refused, by servers and by an environment
// server of ours: the same lines come out of both.
func TestAnEnvironmentServerDoesWhatTheRunItselfWould(t *testing.T) {
	var results, failed [2][]string
	for i, through := range []string{"servers", "an environment server"} {
		t.Run(through, func(t *testing.T) {
			b := newBench(t, flat(100))
			poison := func(c scripted.Call) bool { return strings.Contains(string(c.Body), `"n":42`) }
			b.Front(poisoned{poison}, nil)
			if i == 1 {
				driver := b.config.Target.(collect.Servers).Driver
				server := httptest.NewServer(envserver.New(envserver.Config{Driver: driver, Policy: retry.Policy{MaxAttempts: 1}}))
				defer server.Close()
				b.config.Target = only(t, server.URL)
			}
			summary := b.run(t)
			if summary.Done != 99 || summary.Failed != 1 || summary.Attempts != 102 || summary.Retries != 2 || mean(summary) != 1.0 {
				t.Errorf("summary %+v, want 99 done and 1 failed in 102 attempts", summary)
			}
			results[i] = sorted(read(t, b.files().Rollouts))
			for _, row := range b.failures(t) {
				failed[i] = append(failed[i], fmt.Sprintf("%d-%d %d %s %t %s %q", row.TaskIndex, row.RolloutIndex, row.AttemptIndex, *row.Stage, row.Terminal, row.Delivery, row.Reason))
			}
			// Each attempt is one of its own, to the servers behind as well.
			var attempts []string
			for _, call := range b.Calls() {
				if call.Route == scripted.Seed && poison(call) {
					var seed struct {
						EpisodeID struct{ Attempt int } `json:"episode_id"`
					}
					if err := json.Unmarshal(call.Body, &seed); err != nil {
						t.Fatal(err)
					}
					attempts = append(attempts, fmt.Sprint(seed.EpisodeID.Attempt))
				}
			}
			if diff := cmp.Diff([]string{"0", "1", "2"}, attempts); diff != "" {
				t.Errorf("attempts at the poisoned task (-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(results[0], results[1]); diff != "" {
		t.Errorf("results (-servers +environment server):\n%s", diff)
	}
	if diff := cmp.Diff(failed[0], failed[1]); diff != "" || len(failed[0]) != 3 {
		t.Errorf("%d failures, want 3 (-servers +environment server):\n%s", len(failed[0]), diff)
	}
}

// A result says in the collector's own fields which rollout it is of, whatever the
// environment server wrote there; all else of it is kept as it came.
func TestAResultOfAnEnvironmentServer(t *testing.T) {
	e := newEnvironment(t, func(w http.ResponseWriter, a asked) {
		if strings.Contains(string(a.EpisodeID), `"attempt":0`) {
			w.WriteHeader(503)
			return
		}
		say(w, a.reply(`"result":{"_ng_task_index":99,"responses_create_params":{"a":1.0},"response":{"b": 2e0},"reward":0.50,"_ng_environment_server":"theirs",`+
			`"_ng_result_type":"odd","_ng_attempt_index":7,"_ng_else":1,"ng_trajectory":{"t":1},"ng_agent_observations":[1],"agent_timed_out":true,"mask_sample":true,"big":18446744073709551616},"failure":null`))
	}, nil)
	b := onStage(t, flat(1), only(t, e.URL))
	summary := b.run(t)
	want := `{"responses_create_params":{"a":1.0},"response":{"b": 2e0},"reward":0.50,"ng_trajectory":{"t":1},"ng_agent_observations":[1],"agent_timed_out":true,"mask_sample":true,"big":18446744073709551616,` +
		`"_ng_task_id":{"taskset":"tasks","task_id":"0"},"_ng_task_index":0,"_ng_rollout_index":0,"_ng_attempt_index":1,"_ng_environment_server":"env","_ng_result_type":"single_agent_turn"}` + "\n"
	if diff := cmp.Diff(want, read(t, b.files().Rollouts)); diff != "" {
		t.Errorf("the line (-want +got):\n%s", diff)
	}
	if summary.Done != 1 || summary.Masked != 1 || summary.TimedOut != 1 {
		t.Errorf("summary %+v, want one done, masked, whose agent timed out", summary)
	}
}

// Each taskset has its environment server, whose name is in its lines.
func TestTasksetsHaveTheirEnvironmentServers(t *testing.T) {
	servers := map[string]*environment{}
	targets := collect.Environments{Routes: map[string]collect.Environment{}}
	for _, name := range []string{"first", "second", "others"} {
		servers[name] = newEnvironment(t, func(w http.ResponseWriter, a asked) { say(w, a.reply(goodResult)) }, nil)
		to := collect.Environment{Client: client(t, servers[name].URL), Name: name + "_env"}
		if name == "others" {
			targets.Default = &to
			continue
		}
		targets.Routes[name] = to
	}
	row := func(taskset string, n int) string {
		return fmt.Sprintf(`{"responses_create_params":{},"task_source":%q,"n":%d}`+"\n", taskset, n)
	}
	b := onStage(t, row("first", 0)+row("second", 1)+row("third", 2)+row("first", 3), targets)
	b.run(t)
	for _, lines := range [][]line{b.results(t), b.inputs(t)} {
		var got []string
		for _, l := range lines {
			got = append(got, l.Server)
		}
		if diff := cmp.Diff([]string{"first_env", "second_env", "others_env", "first_env"}, got); diff != "" {
			t.Errorf("servers of the lines (-want +got):\n%s", diff)
		}
	}
	var asked []int
	for _, name := range []string{"first", "second", "others"} {
		asked = append(asked, len(servers[name].got("/run")))
	}
	if diff := cmp.Diff([]int{2, 1, 1}, asked); diff != "" {
		t.Errorf("episodes of each server (-want +got):\n%s", diff)
	}
}

// A taskset without an environment server is a fault of the dataset.
func TestATasksetThatNoServerHas(t *testing.T) {
	e := newEnvironment(t, func(w http.ResponseWriter, a asked) { say(w, a.reply(goodResult)) }, nil)
	targets := collect.Environments{Routes: map[string]collect.Environment{"tasks": {Client: client(t, e.URL), Name: "env"}}}
	b := onStage(t, flat(2)+"\n"+`{"responses_create_params":{},"task_source":"other"}`, targets)
	err := b.refused(t)
	var input *collect.InputError
	if !errors.As(err, &input) || input.File != b.config.Dataset || input.Line != 4 || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("got %v, want line 4 of the dataset and the taskset", err)
	}
	if got := e.got("/run"); len(got) != 0 || len(b.snapshot(t)) != 0 {
		t.Errorf("%d episodes were run, and %v is there", len(got), b.snapshot(t))
	}
}

// The body of POST /run is the contract's, with the row's own bytes in it.
func TestWhatAnEnvironmentServerIsAsked(t *testing.T) {
	e := newEnvironment(t, func(w http.ResponseWriter, a asked) {
		if a.Task.Input.Data.N == 1 && strings.Contains(string(a.EpisodeID), `"attempt":0`) {
			w.WriteHeader(503)
			return
		}
		say(w, a.reply(goodResult))
	}, nil)
	b := onStage(t, `{"responses_create_params":{"input":"<é>","t":1.0},"n":1,"_ng_rollout_id":"mine","agent_timeout_seconds":1.5,"agent_ref":{"name":"x"},"task_id":"a"}`, only(t, e.URL))
	b.run(t)
	want := `{"episode_id":{"rollout_id":"mine","attempt":%d},"task":{"task_id":{"taskset":"tasks","task_id":"a"},` +
		`"task_input":{"responses_create_params":{"input":"<é>","t":1.0},"task_data":{"n":1,"task_id":"a"},"agent_timeout_seconds":1.5}}}`
	got := e.got("/run")
	sort.Strings(got)
	if diff := cmp.Diff([]string{fmt.Sprintf(want, 0), fmt.Sprintf(want, 1)}, got); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
}

// An environment server may take as long as it likes; a run that is stopped does
// not wait for it, and writes no line of it.
func TestAStoppedRunDoesNotWaitForAnEnvironmentServer(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	gone := make(chan struct{})
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server notices that its caller has gone only then
		stop()
		<-r.Context().Done()
		close(gone)
	}))
	defer e.Close()
	b := onStage(t, flat(1), only(t, e.URL))
	summary, err := collect.Run(ctx, b.config)
	if err != nil || summary.Missing() != 1 || summary.Failed != 0 || len(b.failures(t)) != 0 {
		t.Errorf("summary %+v, %v, with failures %+v, want one missing and no line", summary, err, b.failures(t))
	}
	<-gone
}

// An environment server that does not answer is given up after the time that an
// attempt may take, and asked again.
func TestAnEnvironmentServerThatDoesNotAnswer(t *testing.T) {
	e := newEnvironment(t, func(http.ResponseWriter, asked) { <-t.Context().Done() }, nil)
	target := only(t, e.URL)
	target.Timeout = time.Millisecond
	b := onStage(t, flat(1), target)
	b.config.Policy.MaxAttempts = 2
	if summary := b.run(t); summary.Failed != 1 || summary.Attempts != 2 {
		t.Errorf("summary %+v, want one failed in two attempts", summary)
	}
	for _, l := range b.failures(t) {
		if want := "the episode timeout of 1ms ran out in POST /run"; !strings.HasPrefix(l.Reason, want) || l.Terminal {
			t.Errorf("failure %+v, want one that is not terminal and begins with %q", l, want)
		}
	}
}
