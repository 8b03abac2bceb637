package collect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.com/turn/internal/collect"
)

// Whatever indexes and ids rows have of their own, each rollout is owed once and
// has an id of its own, or the dataset is refused at the row that would make two
// of one.
func TestRolloutsAreUnique(t *testing.T) {
	dir := t.TempDir()
	s := atOnce(nil)
	rapid.Check(t, func(t *rapid.T) {
		index := rapid.OneOf(rapid.Int64Range(0, 4), rapid.SampledFrom([]int64{1 << 62, 1<<62 - 1, 1 << 53}))
		id := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("%d-%d", index.Draw(t, "i"), index.Draw(t, "j")) }),
			rapid.SampledFrom([]string{"a", "b", "00-0", "0-00", "0", "1-1-1"}),
		)
		var dataset strings.Builder
		rows := rapid.IntRange(1, 8).Draw(t, "rows")
		for range rows {
			fmt.Fprintf(&dataset, `{"responses_create_params":{},"n":%d`, rapid.IntRange(0, 3).Draw(t, "content"))
			if rapid.Bool().Draw(t, "has a task index") {
				fmt.Fprintf(&dataset, `,"_ng_task_index":%d`, index.Draw(t, "task"))
			}
			if rapid.Bool().Draw(t, "has a rollout index") {
				fmt.Fprintf(&dataset, `,"_ng_rollout_index":%d`, index.Draw(t, "rollout"))
			}
			if rapid.IntRange(0, 2).Draw(t, "has a rollout id") == 0 {
				fmt.Fprintf(&dataset, `,"_ng_rollout_id":%q`, id.Draw(t, "id"))
			}
			dataset.WriteString("}\n")
		}
		config := collect.Config{
			Dataset: filepath.Join(dir, "tasks.jsonl"), Output: filepath.Join(dir, "rollouts.jsonl"), Overwrite: true,
			Repeats: rapid.IntRange(1, 3).Draw(t, "repeats"), AllowDuplicateIDs: true, Target: s,
		}
		// Preparing is enough: nothing is run.
		drain := make(chan struct{})
		config.Drain, config.Observer = drain, &preparedOnly{drain: drain}
		if err := os.WriteFile(config.Dataset, []byte(dataset.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		summary, err := collect.Run(t.Context(), config)
		var input *collect.InputError
		if errors.As(err, &input) {
			if input.Line < 1 || input.Line > rows {
				t.Fatalf("refused at line %d: %v", input.Line, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		checkUnique(t, collect.FilesOf(config.Output).Inputs, rows*config.Repeats, summary)
	})
}

// preparedOnly drains a run as soon as it is prepared.
type preparedOnly struct {
	stopper
	drain chan struct{}
}

func (p *preparedOnly) Prepared(collect.Owed) { close(p.drain) }

func checkUnique(t *rapid.T, inputs string, rollouts int, summary *collect.Summary) {
	text, err := os.ReadFile(inputs)
	if err != nil {
		t.Fatal(err)
	}
	pairs, ids, tasks := map[string]bool{}, map[string]bool{}, map[int64]int{}
	for raw := range strings.Lines(string(text)) {
		var l line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatal(err)
		}
		pair := fmt.Sprintf("%d-%d", l.TaskIndex, l.RolloutIndex)
		id := l.ID
		if id == "" {
			id = pair
		}
		if pairs[pair] || ids[id] {
			t.Fatalf("rollout %s with id %s is there twice:\n%s", pair, id, text)
		}
		pairs[pair], ids[id] = true, true
		tasks[l.TaskIndex]++
	}
	repeats := 0
	for _, n := range tasks {
		repeats = max(repeats, n)
	}
	if want := (collect.Owed{Rollouts: rollouts, Tasks: len(tasks), Repeats: repeats, Servers: 1}); len(pairs) != rollouts || summary.Owed != want {
		t.Fatalf("%d rollouts are owed, and %+v is said, want %+v", len(pairs), summary.Owed, want)
	}
}

// Rows with indexes of their own may come in any order, and those without get what
// is left.
func TestIndexesThatRowsHave(t *testing.T) {
	for _, test := range []struct {
		name string
		rows []string
		want []string
		line int // of the row that is refused; 0: none
		says string
	}{
		{"rollouts backwards", []string{`"_ng_rollout_index":3`, `"_ng_rollout_index":1`, `"_ng_rollout_index":0`, `"_ng_rollout_index":2`}, []string{"0-3", "0-1", "0-0", "0-2"}, 0, ""},
		{"one after those that have indexes", []string{`"_ng_rollout_index":3`, `"_ng_rollout_index":1`, ``}, []string{"0-3", "0-1", "0-4"}, 0, ""},
		{"the same twice, between others", []string{`"_ng_rollout_index":3`, `"_ng_rollout_index":1`, `"_ng_rollout_index":2`, `"_ng_rollout_index":1`}, nil, 4, "_ng_rollout_index 1 of _ng_task_index 0 is there twice"},
		{"the same twice, at the end", []string{`"_ng_rollout_index":3`, `"_ng_rollout_index":3`}, nil, 2, "_ng_rollout_index 3 of _ng_task_index 0 is there twice"},
		{"the same twice, as large as there is", []string{`"_ng_rollout_index":4611686018427387904`, `"_ng_rollout_index":4611686018427387904`}, nil, 2, "is there twice"},
		{"larger than there is", []string{`"_ng_rollout_index":9223372036854775808`}, nil, 1, "_ng_rollout_index"},
		{"below nothing", []string{`"_ng_task_index":-1`}, nil, 1, "_ng_task_index"},
		{"two indexes for one content", []string{`"_ng_task_index":4`, `"_ng_task_index":7`, `"_ng_task_index":4`, ``}, []string{"4-0", "7-0", "4-1", "0-0"}, 0, ""},
		{"an id that is its own", []string{`"_ng_rollout_id":"0-0"`, `"_ng_rollout_id":"0-1"`}, []string{"0-0", "0-1"}, 0, ""},
		{"ids that are each other's", []string{`"_ng_rollout_id":"0-1"`, `"_ng_rollout_id":"0-0"`}, nil, 2, "rollout id 0-0 is there twice"},
		{"an id that a later row gets", []string{`"_ng_rollout_id":"0-1"`, ``}, nil, 2, "rollout id 0-1 is there twice"},
		{"an id of a rollout that there is not", []string{`"_ng_rollout_index":3`, `"_ng_rollout_id":"0-1"`}, []string{"0-3", "0-4"}, 0, ""},
		{"an id that is only like another", []string{``, `"_ng_rollout_id":"00-0"`, `"_ng_rollout_id":"0-00"`}, []string{"0-0", "0-1", "0-2"}, 0, ""},
		{"an id twice", []string{`"_ng_rollout_id":"a"`, `"_ng_rollout_id":"a"`}, nil, 2, "rollout id a is there twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var dataset string
			for _, fields := range test.rows {
				if fields != "" {
					fields = "," + fields
				}
				dataset += `{"responses_create_params":{}` + fields + "}\n"
			}
			b := onStage(t, dataset, atOnce(nil))
			b.config.AllowDuplicateIDs = true
			_, err := collect.Run(t.Context(), b.config)
			var input *collect.InputError
			if test.line > 0 {
				if !errors.As(err, &input) || input.Line != test.line || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want a refusal of line %d with %q", err, test.line, test.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for raw := range strings.Lines(read(t, b.files().Inputs)) {
				var l line
				if err := json.Unmarshal([]byte(raw), &l); err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprintf("%d-%d", l.TaskIndex, l.RolloutIndex))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("what is owed, in its order (-want +got):\n%s", diff)
			}
		})
	}
}
