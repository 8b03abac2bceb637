package collect_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
)

func TestParseShard(t *testing.T) {
	type env = map[string]string
	slurm := func(id, least, count string) env {
		return env{"SLURM_ARRAY_TASK_ID": id, "SLURM_ARRAY_TASK_MIN": least, "SLURM_ARRAY_TASK_COUNT": count}
	}
	step := func(e env, by string) env { e["SLURM_ARRAY_TASK_STEP"] = by; return e }
	for _, test := range []struct {
		text string
		env  env
		want collect.Shard
		says string // of the error; "": there is none
	}{
		{"3/16", nil, collect.Shard{Part: 3, Of: 16}, ""},
		{"1/1", nil, collect.Shard{Part: 1, Of: 1}, ""},
		{"16/16", nil, collect.Shard{Part: 16, Of: 16}, ""},
		{"03/16", nil, collect.Shard{Part: 3, Of: 16}, ""},
		{"0/16", nil, collect.Shard{}, "there is no shard 0 of 16"},
		{"17/16", nil, collect.Shard{}, "there is no shard 17 of 16"},
		{"-1/16", nil, collect.Shard{}, "there is no shard -1 of 16"},
		{"1/0", nil, collect.Shard{}, "there is no shard 1 of 0"},
		{"0/0", nil, collect.Shard{}, "there is no shard 0 of 0"},
		{"-1/-1", nil, collect.Shard{}, "there is no shard"},
		{"", nil, collect.Shard{}, "is not a shard: want i/n"},
		{"3", nil, collect.Shard{}, "is not a shard: want i/n"},
		{"Auto", nil, collect.Shard{}, "is not a shard: want i/n"},
		{"/16", nil, collect.Shard{}, "is no number"},
		{"3/", nil, collect.Shard{}, "is no number"},
		{"a/16", nil, collect.Shard{}, `"a" is no number`},
		{"3/b", nil, collect.Shard{}, `"b" is no number`},
		{"3/16/2", nil, collect.Shard{}, `"16/2" is no number`},
		{"3 /16", nil, collect.Shard{}, "is no number"},
		{"1.5/16", nil, collect.Shard{}, "is no number"},
		{"99999999999999999999/16", nil, collect.Shard{}, "is no number"},

		{"auto", slurm("0", "0", "16"), collect.Shard{Part: 1, Of: 16}, ""},
		{"auto", slurm("15", "0", "16"), collect.Shard{Part: 16, Of: 16}, ""},
		{"auto", slurm("1", "1", "16"), collect.Shard{Part: 1, Of: 16}, ""},
		{"auto", slurm("16", "1", "16"), collect.Shard{Part: 16, Of: 16}, ""},
		{"auto", slurm("107", "100", "8"), collect.Shard{Part: 8, Of: 8}, ""},
		{"auto", step(slurm("0", "0", "4"), "1"), collect.Shard{Part: 1, Of: 4}, ""},
		{"auto", step(slurm("9", "1", "5"), "2"), collect.Shard{Part: 5, Of: 5}, ""},
		{"auto", step(slurm("1", "1", "5"), "2"), collect.Shard{Part: 1, Of: 5}, ""},
		{"auto", step(slurm("4", "1", "5"), "2"), collect.Shard{}, "evenly spaced"},
		{"auto", slurm("5", "0", "3"), collect.Shard{}, "evenly spaced"}, // --array=0,1,5
		{"auto", slurm("3", "4", "3"), collect.Shard{}, "evenly spaced"},
		{"auto", step(slurm("3", "4", "3"), "2"), collect.Shard{}, "evenly spaced"},
		{"auto", slurm("0", "0", "0"), collect.Shard{}, "evenly spaced"},
		{"auto", nil, collect.Shard{}, "SLURM_ARRAY_TASK_ID is not set: is this a task of a Slurm job array?"},
		{"auto", env{"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "16"}, collect.Shard{}, "SLURM_ARRAY_TASK_MIN is not set"},
		{"auto", env{"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "0"}, collect.Shard{}, "SLURM_ARRAY_TASK_COUNT is not set"},
		{"auto", slurm("x", "0", "16"), collect.Shard{}, `SLURM_ARRAY_TASK_ID is "x", which is no number`},
		{"auto", step(slurm("3", "0", "16"), "x"), collect.Shard{}, `SLURM_ARRAY_TASK_STEP is "x"`},

		{"auto/16", env{"JOB_COMPLETION_INDEX": "0"}, collect.Shard{Part: 1, Of: 16}, ""},
		{"auto/16", env{"JOB_COMPLETION_INDEX": "15"}, collect.Shard{Part: 16, Of: 16}, ""},
		{"auto/16", env{"JOB_COMPLETION_INDEX": "16"}, collect.Shard{}, "there is no shard 17 of 16"},
		{"auto/16", env{"JOB_COMPLETION_INDEX": "-1"}, collect.Shard{}, "there is no shard 0 of 16"},
		{"auto/16", slurm("3", "0", "16"), collect.Shard{}, "JOB_COMPLETION_INDEX is not set: is this a pod of an Indexed Job?"},
		{"auto/16", env{"JOB_COMPLETION_INDEX": "a"}, collect.Shard{}, `JOB_COMPLETION_INDEX is "a", which is no number`},
		{"auto/x", env{"JOB_COMPLETION_INDEX": "0"}, collect.Shard{}, `"x" is no number`},
		{"auto/", env{"JOB_COMPLETION_INDEX": "0"}, collect.Shard{}, "is no number"},
		{"auto/0", env{"JOB_COMPLETION_INDEX": "0"}, collect.Shard{}, "there is no shard 1 of 0"},
	} {
		t.Run(fmt.Sprintf("%s with %v", test.text, test.env), func(t *testing.T) {
			got, err := collect.ParseShard(test.text, func(name string) string { return test.env[name] })
			switch {
			case test.says == "" && (err != nil || got != test.want):
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("got %+v, %v, want an error with %q", got, err, test.says)
			}
		})
	}
}

// Outputs of shards have names that sort by part.
func TestTheOutputOfAShard(t *testing.T) {
	for _, test := range []struct {
		shard        collect.Shard
		output, want string
	}{
		{collect.Shard{}, "a/rollouts.jsonl", "a/rollouts.jsonl"},
		{collect.Shard{Part: 3, Of: 16}, "a/rollouts.jsonl", "a/rollouts.shard-03-of-16.jsonl"},
		{collect.Shard{Part: 1, Of: 2}, "rollouts.jsonl", "rollouts.shard-01-of-02.jsonl"},
		{collect.Shard{Part: 1, Of: 1}, "rollouts.jsonl", "rollouts.shard-01-of-01.jsonl"},
		{collect.Shard{Part: 99, Of: 99}, "rollouts.jsonl", "rollouts.shard-99-of-99.jsonl"},
		{collect.Shard{Part: 7, Of: 128}, "rollouts.jsonl", "rollouts.shard-007-of-128.jsonl"},
		{collect.Shard{Part: 1, Of: 1000}, "rollouts.jsonl", "rollouts.shard-0001-of-1000.jsonl"},
		{collect.Shard{Part: 3, Of: 16}, "rollouts", "rollouts.shard-03-of-16.jsonl"},
	} {
		got := test.shard.Output(test.output)
		if got != test.want {
			t.Errorf("the output of shard %+v of %s is %s, want %s", test.shard, test.output, got, test.want)
		}
		if test.shard.IsWhole() != (test.shard == collect.Shard{}) {
			t.Errorf("shard %+v is whole: %t", test.shard, test.shard.IsWhole())
		}
	}
}

// Shards divide the tasks by their index, all repeats of one together, and every
// rollout is in exactly one. The joined output is that of one run.
func TestShardsDivideADataset(t *testing.T) {
	dataset := flat(5) + `{"responses_create_params":{},"_ng_task_index":11}` + "\n" + flat(1) + `{"responses_create_params":{},"last":1}`
	whole := onStage(t, dataset, atOnce(nil))
	whole.config.Repeats = 2
	one := whole.run(t)

	b := onStage(t, dataset, nil)
	b.config.Repeats = 2
	output := b.config.Output
	var all []string
	for part := 1; part <= 3; part++ {
		s := atOnce(nil)
		b.config.Target, b.config.Shard = s, collect.Shard{Part: part, Of: 3}
		b.config.Output = b.config.Shard.Output(output)
		summary := b.run(t)
		played := s.played()
		want := map[int][]string{ // tasks 0 to 5 and 11; the first row is there twice
			1: {"0-0", "0-1", "0-2", "0-3", "3-0", "3-1"},
			2: {"1-0", "1-1", "4-0", "4-1"},
			3: {"11-0", "11-1", "2-0", "2-1", "5-0", "5-1"},
		}[part]
		if diff := cmp.Diff(want, played); diff != "" {
			t.Errorf("shard %d runs (-want +got):\n%s", part, diff)
		}
		wantOwed := collect.Owed{Rollouts: len(want), Tasks: map[int]int{1: 2, 2: 2, 3: 3}[part], Repeats: map[int]int{1: 4, 2: 2, 3: 2}[part], Servers: 1}
		if diff := cmp.Diff(wantOwed, summary.Owed); diff != "" || !summary.Complete() {
			t.Errorf("shard %d owes (-want +got):\n%s", part, diff)
		}
		for _, file := range []string{b.files().Rollouts, b.files().Failures, b.files().Inputs, b.files().Aggregate} {
			if !strings.Contains(filepath.Base(file), fmt.Sprintf("rollouts.shard-0%d-of-03", part)) {
				t.Errorf("shard %d has the file %s", part, file)
			}
			_ = read(t, file) // it is there
		}
		all = append(all, played...)
	}
	slices.Sort(all)
	wholes := pairs(whole.results(t))
	slices.Sort(wholes)
	if diff := cmp.Diff(wholes, all); diff != "" {
		t.Errorf("all shards together (-one run +shards):\n%s", diff)
	}

	joined, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{filepath.Join(b.dir, "out", "rollouts.shard-*.jsonl")}, Output: output})
	if err != nil || !joined.Complete() || joined.Parts != 3 || len(joined.MissingShards)+len(joined.Twice)+len(joined.Missing) != 0 {
		t.Fatalf("joined %+v, %v", joined, err)
	}
	for path, other := range map[string]string{whole.files().Rollouts: output, whole.files().Inputs: collect.FilesOf(output).Inputs} {
		if diff := cmp.Diff(sorted(read(t, path)), sorted(read(t, other))); diff != "" {
			t.Errorf("%s (-one run +joined):\n%s", filepath.Base(path), diff)
		}
	}
	if diff := cmp.Diff(one.Owed, joined.Owed); diff != "" {
		t.Errorf("owed (-one run +joined):\n%s", diff)
	}
}

// A shard may have no task.
func TestAShardWithoutATask(t *testing.T) {
	s := atOnce(nil)
	b := onStage(t, flat(2), s)
	b.config.Shard = collect.Shard{Part: 3, Of: 3}
	notes := b.noted()
	if summary := b.run(t); !summary.Complete() || summary.Owed != (collect.Owed{}) || len(s.played()) != 0 {
		t.Errorf("summary %+v, want nothing owed", summary)
	}
	if len(*notes) != 1 || !strings.Contains((*notes)[0], "shard 3 of 3 has none of the 2 rows") {
		t.Errorf("notes %q, want one that says so", *notes)
	}
}
