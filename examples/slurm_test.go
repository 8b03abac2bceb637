//go:build unix

package examples_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// An array is a Slurm job array of run.sbatch, and the folder that it was submitted
// in.
type array struct {
	folder  string
	tasks   int
	servers *servers
	env     map[string]string
}

const repeats = 2

func submit(t *testing.T, tasks int) *array {
	t.Helper()
	a := &array{folder: t.TempDir(), tasks: tasks, servers: serve(t)}
	a.env = map[string]string{
		"TURN_RESOURCES": a.servers.resources,
		"TURN_AGENT":     a.servers.agent,
		"TURN_REPEATS":   fmt.Sprint(repeats),
	}
	copyDataset(t, filepath.Join(a.folder, "tasks.jsonl")) // where the script looks for it
	return a
}

// script starts a script as Slurm does: in the folder that it was submitted in, with
// the environment of that time and what Slurm adds.
func (a *array) script(t *testing.T, name string, slurm map[string]string) *job {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("slurm", name))
	if err != nil {
		t.Fatal(err)
	}
	env := maps.Clone(a.env)
	maps.Copy(env, slurm)
	return start(t, a.folder, env, "bash", script)
}

// task starts a task of the array.
func (a *array) task(t *testing.T, index int) *job {
	t.Helper()
	return a.taskUntil(t, index, "")
}

// taskUntil starts a task whose allocation ends at a time, which Slurm says.
func (a *array) taskUntil(t *testing.T, index int, end string) *job {
	t.Helper()
	slurm := map[string]string{
		"SLURM_JOB_ID":           fmt.Sprint(100 + index),
		"SLURM_ARRAY_JOB_ID":     "100",
		"SLURM_ARRAY_TASK_ID":    fmt.Sprint(index),
		"SLURM_ARRAY_TASK_MIN":   "0",
		"SLURM_ARRAY_TASK_MAX":   fmt.Sprint(a.tasks - 1),
		"SLURM_ARRAY_TASK_STEP":  "1",
		"SLURM_ARRAY_TASK_COUNT": fmt.Sprint(a.tasks),
	}
	if end != "" {
		slurm["SLURM_JOB_END_TIME"] = end
	}
	return a.script(t, "run.sbatch", slurm)
}

func (a *array) aggregate(t *testing.T) *job {
	t.Helper()
	return a.script(t, "aggregate.sbatch", map[string]string{"SLURM_JOB_ID": "200"})
}

// output is the joined rollouts file.
func (a *array) output() string { return filepath.Join(a.folder, "results", "rollouts.jsonl") }

// shard is the rollouts file of a task.
func (a *array) shard(index int) string { return shardFile(a.output(), index+1, a.tasks) }

// wantAnswers checks how often the agent has answered: more than once a rollout, and
// something was run again in vain.
func (a *array) wantAnswers(t *testing.T, want int) {
	t.Helper()
	if got := a.servers.answered(); got != want {
		t.Errorf("the agent answered %d times, want %d", got, want)
	}
}

func TestSlurmTasksOneAfterTheOther(t *testing.T) {
	t.Parallel()
	a := submit(t, 3)
	for index := range a.tasks {
		a.task(t, index).wantStatus(t, 0)
	}
	a.aggregate(t).wantStatus(t, 0)
	wantEachOnce(t, a.output(), repeats)
	a.wantAnswers(t, tasks*repeats)
}

// The whole array may be submitted again at any time: what is done is not run again.
func TestSlurmTasksAtOnce(t *testing.T) {
	t.Parallel()
	a := submit(t, 4)
	for range 2 {
		var jobs []*job
		for index := range a.tasks {
			jobs = append(jobs, a.task(t, index))
		}
		for _, j := range jobs {
			j.wantStatus(t, 0)
		}
		a.aggregate(t).wantStatus(t, 0)
		wantEachOnce(t, a.output(), repeats)
		a.wantAnswers(t, tasks*repeats)
	}
}

// A task that is pre-empted in the middle of an episode goes on when it is queued
// again.
func TestSlurmPreemption(t *testing.T) {
	t.Parallel()
	a := submit(t, 4)
	a.env["TURN_CONCURRENCY"], a.env["TURN_GRACE"] = "1", "10ms"
	reached, release := a.servers.holdAfter(3)
	preempted := a.task(t, 2)
	await(t, reached, "the episode that is cut off")
	preempted.terminate(t) // the batch shell, which is turn by now
	preempted.wantStatus(t, 143)
	release()
	before, err := os.ReadFile(a.shard(2))
	if got := strings.Count(string(before), "\n"); err != nil || got != 3 {
		t.Fatalf("%d results are on disk (%v), want 3", got, err)
	}

	for _, index := range []int{0, 1, 3} {
		a.task(t, index).wantStatus(t, 0)
	}
	early := a.aggregate(t)
	early.wantStatus(t, 3)
	if want := "7 missing"; !strings.Contains(early.log.String(), want) {
		t.Errorf("aggregate does not say %q", want)
	}

	a.task(t, 2).wantStatus(t, 0)
	wantPrefix(t, a.shard(2), before)
	a.aggregate(t).wantStatus(t, 0)
	wantEachOnce(t, a.output(), repeats)
	a.wantAnswers(t, tasks*repeats)
}

// A shard that never began is missed by name.
func TestSlurmTaskThatNeverBegan(t *testing.T) {
	t.Parallel()
	a := submit(t, 3)
	a.task(t, 0).wantStatus(t, 0)
	a.task(t, 2).wantStatus(t, 0)
	joined := a.aggregate(t)
	joined.wantStatus(t, 3)
	if want := "no shard  results/rollouts.shard-02-of-03.jsonl"; !strings.Contains(joined.log.String(), want) {
		t.Errorf("aggregate does not say %q", want)
	}
}

// A task ends before its allocation does, and what it had no time for is run by the
// next one.
func TestSlurmTimeLimit(t *testing.T) {
	t.Parallel()
	const budget = 5 * time.Second
	a := submit(t, 2)
	a.env["TURN_CONCURRENCY"] = "1"
	_, release := a.servers.holdAfter(3) // the next one is cut off when the budget ends
	margin := time.Duration(signalMargin(t)) * time.Second
	short := a.taskUntil(t, 0, fmt.Sprint(time.Now().Add(margin+budget).Unix()))
	short.wantStatus(t, 3)
	release()
	for index := range a.tasks {
		a.task(t, index).wantStatus(t, 0)
	}
	a.aggregate(t).wantStatus(t, 0)
	wantEachOnce(t, a.output(), repeats)
}

// The budget is what is left of the allocation before the signal; there is none where
// Slurm does not say when it ends, or so little is left that the signal comes at once.
func TestSlurmBudget(t *testing.T) {
	t.Parallel()
	a := submit(t, 20)
	margin := int64(signalMargin(t))
	for _, test := range []struct {
		name, end   string
		least, most time.Duration // 0: none
	}{
		{"four hours", fmt.Sprint(time.Now().Unix() + 4*3600), 4*time.Hour - 2*time.Minute - eventually, 4*time.Hour - 2*time.Minute},
		{"less than the signal's", fmt.Sprint(time.Now().Unix() + margin - 60), 0, 0},
		{"nothing left", fmt.Sprint(time.Now().Unix()), 0, 0},
		{"Slurm does not say", "", 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			task := a.taskUntil(t, 0, test.end)
			task.wantStatus(t, 0)
			text := task.running(t)["budget"].(string)
			if text == "none" {
				text = "0"
			}
			if got, err := time.ParseDuration(text); err != nil || got < test.least || got > test.most {
				t.Errorf("the budget is %s (%v), want %v to %v", text, err, test.least, test.most)
			}
		})
	}
}

// Rollouts that failed for good are told by exit status 3, of their shard and of the
// whole. They are run again only where that is asked for.
func TestSlurmFailedRollouts(t *testing.T) {
	t.Parallel()
	a := submit(t, 2)
	// Task 20, of shard 1, lacks the city that the environment asks for.
	copyDataset(t, filepath.Join(a.folder, "tasks.jsonl"), `{"task_id":{"taskset":"weather","task_id":"nowhere"},"task_input":{"responses_create_params":{"input":"?"},"task_data":{}}}`)
	for range 2 {
		a.task(t, 0).wantStatus(t, 3)
		a.task(t, 1).wantStatus(t, 0)
		a.aggregate(t).wantStatus(t, 3)
		wantEachOnce(t, a.output(), repeats)
		failed := read(t, strings.TrimSuffix(a.output(), ".jsonl")+"_failures.jsonl")
		for index := range repeats {
			if got := failed[rollout{tasks, index}]; got != 1 {
				t.Errorf("rollout %d-%d failed %d times, want once", tasks, index, got)
			}
		}
	}
	a.env["TURN_RETRY_TERMINAL"] = "true"
	a.task(t, 0).wantStatus(t, 3)
	failed := read(t, strings.TrimSuffix(a.shard(0), ".jsonl")+"_failures.jsonl")
	for index := range repeats {
		if got := failed[rollout{tasks, index}]; got != 2 {
			t.Errorf("rollout %d-%d failed %d times, want twice: it was tried once more", tasks, index, got)
		}
	}
}

// A mistake is told as one: exit status 2, and no output.
func TestSlurmMistakes(t *testing.T) {
	t.Parallel()
	a := submit(t, 2)
	a.env["DATASET"] = "another.jsonl"
	a.task(t, 0).wantStatus(t, 2)
	a.aggregate(t).wantStatus(t, 2)
	if _, err := os.Stat(a.output()); err == nil {
		t.Error("there is an output")
	}
}

// The time between Slurm's signal and its end has to do for what turn does in it.
func TestSlurmSignalLeavesTime(t *testing.T) {
	t.Parallel()
	a := submit(t, 20)
	task := a.task(t, 0)
	task.wantStatus(t, 0)
	running := task.running(t)
	if left := signalMargin(t) - secondsOf(t, running["grace"]) - 2*secondsOf(t, running["cleanup_timeout"]); left <= 0 {
		t.Errorf("the signal comes %d s before the end, %v s too late for the grace and two closes", signalMargin(t), -left)
	}
}

// signalMargin is how many seconds before an allocation's end Slurm signals.
func signalMargin(t *testing.T) int {
	t.Helper()
	script, err := os.ReadFile(filepath.Join("slurm", "run.sbatch"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^#SBATCH --signal=B:TERM@(\d+)$`).FindSubmatch(script)
	if match == nil {
		t.Fatal("run.sbatch does not have its batch shell signalled")
	}
	margin, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(script), fmt.Sprintf("SLURM_JOB_END_TIME:-0} - %d -", margin)) {
		t.Errorf("the budget does not end %d s before the allocation does, when the signal comes", margin)
	}
	return margin
}

func secondsOf(t *testing.T, duration any) int {
	t.Helper()
	d, err := time.ParseDuration(fmt.Sprint(duration))
	if err != nil {
		t.Fatal(err)
	}
	return int(d / time.Second)
}

// Slurm reads #SBATCH lines only up to the first command.
func TestSlurmScriptsAreSound(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"run.sbatch", "aggregate.sbatch"} {
		path := filepath.Join("slurm", name)
		script, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		command := false
		for line := range strings.Lines(string(script)) {
			directive := strings.HasPrefix(line, "#SBATCH ")
			if directive && command {
				t.Errorf("%s: Slurm does not read %s behind a command", name, line)
			}
			command = command || !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != ""
		}
		if out, err := exec.Command("bash", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("bash -n %s: %v\n%s", path, err, out)
		}
		if shellcheck, err := exec.LookPath("shellcheck"); err != nil {
			t.Log("shellcheck is not installed")
		} else if out, err := exec.Command(shellcheck, "--severity=warning", path).CombinedOutput(); err != nil {
			t.Errorf("shellcheck %s: %v\n%s", path, err, out)
		}
	}
}
