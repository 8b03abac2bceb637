package collect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// asking is a stage whose metrics are a test's.
type asking struct {
	*stage
	metrics func(ctx context.Context, server string, body func() (io.ReadCloser, error)) ([]byte, error)
}

func (a asking) AggregateMetrics(ctx context.Context, server string, body func() (io.ReadCloser, error)) ([]byte, error) {
	return a.metrics(ctx, server, body)
}

// metricsRows are results of two environment servers, and the bodies that their
// metrics are asked for with.
const (
	metricsRows = `{"responses_create_params":{"input":"long"},"response":{"id":"r","output":[{"a":1}],"usage":{"total_tokens": 15,"x":1.0},"incomplete_details":{"reason":"max"}},"reward":0.50,"mask_sample":false,"big":18446744073709551616,"u":"<é>",` +
		`"ng_agent_observations":{"o":[1]},"ng_trajectory":{"t":1},"_ng_task_id":{"taskset":"tasks","task_id":"0"},"_ng_task_index":0,"_ng_rollout_index":0,"_ng_environment_server":"env","_ng_result_type":"single_agent_turn"}` + "\n" +
		`{"responses_create_params":{},"response":{"output":[]},"reward":0,"mask_sample":true,"failure_reason":"odd","_ng_task_index":1,"_ng_rollout_index":0,"_ng_attempt_index":2,"_ng_environment_server":"env"}` + "\n" +
		`{"responses_create_params":{},"response":{},"reward":1,"_ng_task_index":2,"_ng_rollout_index":0,"_ng_environment_server":"other"}` + "\n" +
		`{"responses_create_params":{},"response":{},"reward":1,"again":true,"_ng_task_index":0,"_ng_rollout_index":0,"_ng_environment_server":"env"}` + "\n" +
		` {"reward":1,"response":null,"_ng_task_index":3,"_ng_rollout_index":0,"_ng_environment_server":"env"} ` + "\r\n"
	envBody = `{"verify_responses":[` +
		`{"response":{"usage":{"total_tokens": 15,"x":1.0},"incomplete_details":{"reason":"max"}},"reward":0.50,"mask_sample":false,"big":18446744073709551616,"u":"<é>",` +
		`"_ng_task_id":{"taskset":"tasks","task_id":"0"},"_ng_task_index":0,"_ng_rollout_index":0,"_ng_environment_server":"env","_ng_result_type":"single_agent_turn"},` +
		`{"response":{},"reward":0,"mask_sample":true,"failure_reason":"odd","_ng_task_index":1,"_ng_rollout_index":0,"_ng_attempt_index":2,"_ng_environment_server":"env"},` +
		`{"reward":1,"response":{},"_ng_task_index":3,"_ng_rollout_index":0,"_ng_environment_server":"env"}]}`
	otherBody = `{"verify_responses":[{"response":{},"reward":1,"_ng_task_index":2,"_ng_rollout_index":0,"_ng_environment_server":"other"}]}`
)

// A resources server is asked for each environment server's results once, without
// what is large in them. What it says is kept, spelled as it is.
func TestMetricsOfAResourcesServer(t *testing.T) {
	b := newBench(t, flat(4))
	b.config.Agent = "simple_agent"
	b.run(t)
	b.left(t, metricsRows, "")
	b.config.Resume = true
	b.Play(scripted.Script{scripted.Metrics: {
		{Raw: text(`{"agent_metrics":{"mean/reward":1.0},"key_metrics":{"k":1e-7},"group_level_metrics":[{"_ng_task_index":0}],"repeat_level_metrics":[[]],"more":1}`)},
		{Raw: text(`{"agent_metrics":{"a":2},"key_metrics":null,"group_level_metrics":null}`)},
	}})
	if summary := b.run(t); summary.Done != 4 || summary.Attempts != 0 {
		t.Errorf("summary %+v, want 4 done before", summary)
	}
	var bodies []string
	for _, call := range b.Calls() {
		if call.Path != "/aggregate_metrics" || call.Header.Get("Content-Type") != "application/json" {
			t.Errorf("a call of %s with %v", call.Path, call.Header)
		}
		bodies = append(bodies, string(call.Body))
	}
	if diff := cmp.Diff([]string{envBody, otherBody}, bodies); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
	const want = `[
  {
    "agent_ref": {
      "name": "simple_agent"
    },
    "_ng_environment_server": "env",
    "agent_metrics": {
      "mean/reward": 1.0
    },
    "key_metrics": {
      "k": 1e-7
    },
    "group_level_metrics": [
      {
        "_ng_task_index": 0
      }
    ],
    "repeat_level_metrics": [
      []
    ]
  },
  {
    "agent_ref": {
      "name": "simple_agent"
    },
    "_ng_environment_server": "other",
    "agent_metrics": {
      "a": 2
    },
    "key_metrics": {},
    "group_level_metrics": [],
    "repeat_level_metrics": []
  }
]
`
	if diff := cmp.Diff(want, read(t, b.files().Aggregate)); diff != "" {
		t.Errorf("the metrics (-want +got):\n%s", diff)
	}
}

// Each environment server is asked for its own results, also when an aggregation
// asks it.
func TestMetricsOfEnvironmentServers(t *testing.T) {
	answer := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/aggregate_metrics" || r.ContentLength != -1 {
				t.Errorf("asked by %s %s with %d bytes, want a POST of unknown length", r.Method, r.URL.Path, r.ContentLength)
			}
			say(w, `{"agent_metrics":{"of":"`+name+`"}}`)
		}
	}
	env, other := newEnvironment(t, nil, answer("env")), newEnvironment(t, nil, answer("other"))
	targets := only(t, env.URL)
	targets.Routes = map[string]collect.Environment{"b": {Client: client(t, other.URL), Name: "other"}}
	b := onStage(t, flat(4), targets)
	b.left(t, metricsRows, "")
	b.config.Resume = true
	b.run(t)
	joined := filepath.Join(b.dir, "joined.jsonl")
	if _, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: joined, Metrics: targets}); err != nil {
		t.Fatal(err)
	}
	for e, want := range map[*environment]string{env: envBody, other: otherBody} {
		if diff := cmp.Diff([]string{want, want}, e.got("/aggregate_metrics")); diff != "" {
			t.Errorf("bodies, of the run and of the aggregation (-want +got):\n%s", diff)
		}
	}
	for _, path := range []string{b.files().Aggregate, collect.FilesOf(joined).Aggregate} {
		var got []struct {
			Server  string            `json:"_ng_environment_server"`
			Metrics map[string]string `json:"agent_metrics"`
		}
		if err := json.Unmarshal([]byte(read(t, path)), &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || got[0].Server != "env" || got[0].Metrics["of"] != "env" || got[1].Server != "other" || got[1].Metrics["of"] != "other" {
			t.Errorf("%s has %+v", filepath.Base(path), got)
		}
	}
}

// Where nobody computes metrics, or whoever is asked does not, there are statistics
// of our own, and a note that says so.
func TestStatisticsOfOurOwn(t *testing.T) {
	reply := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { say(w, text) }
	}
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc // nil: nobody is asked
		says   string
	}{
		{"nobody is asked", nil, ""},
		{"a server that has no such thing", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, "404 Not Found"},
		{"a server that fails", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); say(w, "no metrics today") }, "no metrics today"},
		{"a reply that is no JSON", func(w http.ResponseWriter, _ *http.Request) { say(w, `{"agent_metrics":`) }, "POST /aggregate_metrics"},
		{"a reply that is no object", func(w http.ResponseWriter, _ *http.Request) { say(w, `[]`) }, "POST /aggregate_metrics: want an object"},
		{"agent metrics that are no object", reply(`{"agent_metrics":[]}`), "agent_metrics is an array"},
		{"key metrics that are no object", reply(`{"key_metrics":"good"}`), "key_metrics is a string"},
		{"group metrics that are no list", reply(`{"group_level_metrics":{}}`), "group_level_metrics is an object"},
		{"repeat metrics that are no list", reply(`{"repeat_level_metrics":true}`), "repeat_level_metrics is a boolean"},
		{"a reply that is lost", func(w http.ResponseWriter, _ *http.Request) { hangUp(w, true) }, "did not answer POST /aggregate_metrics"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
				fields := map[string]string{"0-0": `"reward":1`, "0-1": `"reward":1`, "1-0": `"reward":0`, "1-1": `"reward":1,"mask_sample":true`, "2-0": `"reward":1`}[r.EpisodeID.RolloutID]
				if fields == "" {
					return nil, refusal()
				}
				return verdict(fields), nil
			})
			var asked atomic.Int64
			answer := func(w http.ResponseWriter, r *http.Request) { asked.Add(1); test.answer(w, r) }
			e := newEnvironment(t, nil, answer)
			b := onStage(t, flat(3), asking{s, only(t, e.URL).AggregateMetrics})
			b.config.Agent, b.config.Repeats = "a", 2
			notes := b.noted()
			if test.answer == nil {
				b.config.Target = asking{s, func(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
					return nil, errors.New("nobody")
				}}
			}
			b.run(t)
			path := b.files().Aggregate
			if test.answer == nil {
				joined := filepath.Join(b.dir, "joined.jsonl")
				*notes = nil
				if _, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: joined, Agent: "a", Note: b.config.Note}); err != nil {
					t.Fatal(err)
				}
				path = collect.FilesOf(joined).Aggregate
			}
			// Task sums are off by 0.5, -0.75 and 0.25: s = √(0.875·3/2)/4, t(2) = 4.303
			const low, high = 0.75 - 4.303*0.286411, 0.75 + 4.303*0.286411
			object := func(fields ...any) map[string]any {
				o := map[string]any{}
				for i := 0; i < len(fields); i += 2 {
					o[fields[i].(string)] = fields[i+1]
				}
				return o
			}
			one := 1.0
			want := []any{object("agent_ref", object("name", "a"), "_ng_environment_server", "env",
				"agent_metrics", object("mean/reward", 0.75, "ci_low_95/reward", low, "ci_high_95/reward", high, "pass@1", 2.0/3, "pass@1/num_tasks", 3.0, "pass@2", one, "pass@2/num_tasks", one, "num_samples", 4.0, "num_masked", one),
				"key_metrics", object("mean/reward", 0.75, "ci_low_95/reward", low, "ci_high_95/reward", high),
				"group_level_metrics", []any{
					object("_ng_task_index", 0.0, "mean/reward", one, "num_rollouts", 2.0, "expected_num_rollouts", 2.0, "missing_num_rollouts", 0.0),
					object("_ng_task_index", one, "mean/reward", 0.0, "num_rollouts", one, "expected_num_rollouts", 2.0, "missing_num_rollouts", 0.0),
					object("_ng_task_index", 2.0, "mean/reward", one, "num_rollouts", one, "expected_num_rollouts", 2.0, "missing_num_rollouts", one),
				},
				"repeat_level_metrics", []any{
					// 1, 0, 1: 2/3 ± 4.303/3
					object("_ng_rollout_index", 0.0, "sample_count", 3.0, "missing_count", 0.0, "mean/reward", 2.0/3, "ci_low_95/reward", 2.0/3-4.303/3, "ci_high_95/reward", 2.0/3+4.303/3),
					object("_ng_rollout_index", one, "sample_count", one, "missing_count", one, "mean/reward", one),
				})}
			var got []any
			if err := json.Unmarshal([]byte(read(t, path)), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-5)); diff != "" {
				t.Errorf("the statistics (-want +got):\n%s", diff)
			}
			if test.answer == nil {
				if len(*notes) != 0 {
					t.Errorf("notes %q, want none", *notes)
				}
				return
			}
			if asked.Load() != 1 { // nothing says that it is safe to repeat
				t.Errorf("it was asked %d times, want once", asked.Load())
			}
			if len(*notes) != 1 || !strings.Contains((*notes)[0], test.says) || !strings.HasSuffix((*notes)[0], path+" has the statistics of this program instead") {
				t.Errorf("notes %q, want one with %q that names %s", *notes, test.says, path)
			}
		})
	}
}

// Whoever is asked gets the body anew for each try, whole.
func TestTheBodyOfMetricsCanBeReadAgain(t *testing.T) {
	var bodies []string
	b := onStage(t, flat(4), asking{atOnce(nil), func(_ context.Context, server string, body func() (io.ReadCloser, error)) ([]byte, error) {
		for range 2 {
			r, err := body()
			if err != nil {
				return nil, err
			}
			half := make([]byte, 7)
			n, err := r.Read(half)
			rest, err2 := io.ReadAll(r)
			bodies = append(bodies, string(half[:n])+string(rest))
			if err := errors.Join(err, err2, r.Close()); err != nil {
				return nil, err
			}
		}
		return []byte(`{}`), nil
	}})
	b.left(t, metricsRows, "")
	b.config.Resume = true
	notes := b.noted()
	b.run(t)
	if diff := cmp.Diff([]string{envBody, envBody, otherBody, otherBody}, bodies); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
	if len(*notes) != 2 { // of the missing inputs, and of the result that is there twice
		t.Errorf("notes %q", *notes)
	}
}

// Metrics of an earlier run are gone as soon as there may be other results, and
// those of a run that was stopped, or that has no result, are asked of nobody.
func TestWhenMetricsAreAskedFor(t *testing.T) {
	for _, test := range []struct {
		name  string
		play  func(b *bench, stop func(), drain func()) func(r *episode.Request) (*episode.Result, *failures.Failure)
		asked int
	}{
		{"a run to the end", func(*bench, func(), func()) func(*episode.Request) (*episode.Result, *failures.Failure) {
			return func(*episode.Request) (*episode.Result, *failures.Failure) { return nil, nil }
		}, 1},
		{"a run that is drained", func(_ *bench, _, drain func()) func(*episode.Request) (*episode.Result, *failures.Failure) {
			return func(r *episode.Request) (*episode.Result, *failures.Failure) {
				if is(r, "1-0") {
					drain()
				}
				return nil, nil
			}
		}, 0},
		{"a run that is drained in its last attempt", func(_ *bench, _, drain func()) func(*episode.Request) (*episode.Result, *failures.Failure) {
			return func(r *episode.Request) (*episode.Result, *failures.Failure) {
				if is(r, "2-0") {
					drain()
				}
				return nil, nil
			}
		}, 0},
		{"a run that is stopped", func(_ *bench, stop, _ func()) func(*episode.Request) (*episode.Result, *failures.Failure) {
			return func(r *episode.Request) (*episode.Result, *failures.Failure) {
				if is(r, "1-0") {
					stop()
				}
				return nil, nil
			}
		}, 0},
		{"a run without a result", func(*bench, func(), func()) func(*episode.Request) (*episode.Result, *failures.Failure) {
			return func(*episode.Request) (*episode.Result, *failures.Failure) { return nil, refusal() }
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked := 0
			b := onStage(t, flat(3), nil)
			writeFile(t, b.files().Aggregate, "[]")
			b.config.Overwrite = true
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			drain := make(chan struct{})
			play := test.play(b, stop, func() { close(drain) })
			s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
				if _, err := os.Stat(b.files().Aggregate); !os.IsNotExist(err) {
					t.Error("the metrics of an earlier run are there")
				}
				return play(r)
			})
			b.config.Target = asking{s, func(ctx context.Context, _ string, _ func() (io.ReadCloser, error)) ([]byte, error) {
				if ctx.Err() != nil {
					return nil, ctx.Err() // as any call would end
				}
				asked++
				return []byte(`{}`), nil
			}}
			b.config.Drain, b.config.Concurrency = drain, 1
			if _, err := collect.Run(ctx, b.config); err != nil {
				t.Fatal(err)
			}
			if asked != test.asked {
				t.Errorf("metrics were asked for %d times, want %d", asked, test.asked)
			}
			if _, err := os.Stat(b.files().Aggregate); os.IsNotExist(err) == (test.asked > 0) {
				t.Errorf("the metrics are there: %v", err)
			}
		})
	}
}

// A server that computes for ever holds nobody up who wants to stop, nor a run whose
// budget is used up.
func TestMetricsAreNotWaitedForByARunThatStops(t *testing.T) {
	for _, name := range []string{"drained", "stopped", "out of time"} {
		t.Run(name, func(t *testing.T) {
			b := onStage(t, flat(1), nil)
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				drain := make(chan struct{})
				began := time.Now()
				b.config.Target = asking{&stage{}, func(ctx context.Context, _ string, _ func() (io.ReadCloser, error)) ([]byte, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}}
				b.config.Drain = drain
				switch name {
				case "drained":
					time.AfterFunc(time.Minute, func() { close(drain) })
				case "stopped":
					time.AfterFunc(time.Minute, stop)
				default:
					b.config.Deadline = began.Add(time.Minute)
				}
				summary, err := collect.Run(ctx, b.config)
				if err != nil || summary.Done != 1 || time.Since(began) != time.Minute {
					t.Errorf("summary %+v, %v after %s, want one done after a minute", summary, err, time.Since(began))
				}
			})
			if _, err := os.Stat(b.files().Aggregate); !os.IsNotExist(err) {
				t.Errorf("there are metrics: %v", err)
			}
		})
	}
}

// Statistics of our own count failed rollouts as the summary does.
func TestStatisticsWithFailuresAsZero(t *testing.T) {
	b := onStage(t, flat(4), asking{atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "3-0") {
			return nil, refusal()
		}
		return nil, nil
	}), func(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
		return nil, errors.New("nobody is there")
	}})
	b.config.FailuresAsZero = true
	for _, test := range []struct {
		limit   int // a narrower resumption asks for less
		mean    float64
		samples float64
	}{{0, 0.75, 4}, {3, 1, 3}} {
		b.config.Limit = test.limit
		if got := mean(b.run(t)); got != test.mean {
			t.Errorf("the summary's mean is %v, want %v", got, test.mean)
		}
		var entries []struct {
			Metrics map[string]float64 `json:"agent_metrics"`
		}
		if err := json.Unmarshal([]byte(read(t, b.files().Aggregate)), &entries); err != nil || len(entries) != 1 || entries[0].Metrics["mean/reward"] != test.mean || entries[0].Metrics["num_samples"] != test.samples {
			t.Errorf("metrics %+v, %v, want a mean of %v over %v", entries, err, test.mean, test.samples)
		}
		b.config.Resume = true
	}
}

// unmeasured is a target of which nobody computes metrics.
type unmeasured struct{ collect.Target }

func (unmeasured) AggregateMetrics(context.Context, string, func() (io.ReadCloser, error)) ([]byte, error) {
	return nil, errors.New("nobody is there")
}

// Each environment server has the statistics of its own rollouts, each counted once. Of
// inputs that are not there nothing is expected.
func TestStatisticsOfEnvironmentServers(t *testing.T) {
	var dataset, failed strings.Builder
	for task, server := range []string{"env", "env", "other", "env", "env", "other"} {
		fmt.Fprintf(&dataset, `{"responses_create_params":{},"task_source":"%s","n":%d}`+"\n", server, task)
		if task != 0 && task < 4 {
			continue
		}
		// Twice; that of task 0 went well later.
		row := strings.Replace(failureRow(task, 0, true), "{", `{"_ng_environment_server":"`+server+`",`, 1)
		failed.WriteString(row + row)
	}
	b := onStage(t, dataset.String(), unmeasured{byTaskset{atOnce(nil)}})
	b.left(t, metricsRows, failed.String())
	b.config.Agent, b.config.Resume, b.config.FailuresAsZero = "a", true, true
	b.run(t)
	if err := os.Remove(b.files().Inputs); err != nil {
		t.Fatal(err)
	}
	joined := filepath.Join(b.dir, "joined.jsonl")
	if _, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: joined, Agent: "a", FailuresAsZero: true}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path          string
		group, repeat string // what is said of what was owed
	}{
		{b.files().Aggregate, `,"expected_num_rollouts":1,"missing_num_rollouts":0`, `,"missing_count":0`},
		{collect.FilesOf(joined).Aggregate, "", ""},
	} {
		// Of env 0.5, 1 and 0, and one masked: 0.5 ± 4.303·√(0.5·3/2)/3. Of the other 1 and
		// 0: 0.5 ± 12.706·√(0.5·2/1)/2.
		const (
			env   = `"mean/reward":0.5,"ci_low_95/reward":-0.742169,"ci_high_95/reward":1.742169`
			other = `"mean/reward":0.5,"ci_low_95/reward":-5.853,"ci_high_95/reward":6.853`
		)
		group := func(task int, mean string) string {
			return fmt.Sprintf(`{"_ng_task_index":%d,"mean/reward":%s,"num_rollouts":1%s}`, task, mean, test.group)
		}
		text := `[{"agent_ref":{"name":"a"},"_ng_environment_server":"env",` +
			`"agent_metrics":{` + env + `,"pass@1":0.333333,"pass@1/num_tasks":3,"num_samples":3,"num_masked":1},"key_metrics":{` + env + `},` +
			`"group_level_metrics":[` + group(0, "0.5") + `,` + group(3, "1") + `,` + group(4, "0") + `],` +
			`"repeat_level_metrics":[{"_ng_rollout_index":0,"sample_count":3` + test.repeat + `,` + env + `}]},` +
			`{"agent_ref":{"name":"a"},"_ng_environment_server":"other",` +
			`"agent_metrics":{` + other + `,"pass@1":0.5,"pass@1/num_tasks":2,"num_samples":2,"num_masked":0},"key_metrics":{` + other + `},` +
			`"group_level_metrics":[` + group(2, "1") + `,` + group(5, "0") + `],` +
			`"repeat_level_metrics":[{"_ng_rollout_index":0,"sample_count":2` + test.repeat + `,` + other + `}]}]`
		var want, got any
		if err := errors.Join(json.Unmarshal([]byte(text), &want), json.Unmarshal([]byte(read(t, test.path)), &got)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-5)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filepath.Base(test.path), diff)
		}
	}
}
