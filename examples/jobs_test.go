//go:build unix

package examples_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// eventually bounds waits for what must happen; nothing takes that long.
const eventually = time.Minute

// A job is what a scheduler has started.
type job struct {
	command *exec.Cmd
	log     bytes.Buffer // complete once it has ended
}

// start starts a program in a folder as a scheduler does: of the environment it has
// only what it is given, and turn on its PATH.
func start(t *testing.T, folder string, env map[string]string, program string, args ...string) *job {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	j := &job{command: exec.CommandContext(ctx, program, args...)}
	j.command.Dir = folder
	j.command.Env = []string{"PATH=" + programs + string(os.PathListSeparator) + os.Getenv("PATH")}
	for name, value := range env {
		j.command.Env = append(j.command.Env, name+"="+value)
	}
	j.command.Stdout, j.command.Stderr = &j.log, &j.log
	j.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j.command.Cancel = j.killAll
	j.command.WaitDelay = time.Second
	if err := j.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = j.command.Wait() // where the test has not
		_ = j.killAll()      // what a script may have left
		if t.Failed() {
			t.Logf("%s wrote:\n%s", strings.Join(j.command.Args, " "), j.log.String())
		}
	})
	return j
}

// killAll ends the job's processes.
func (j *job) killAll() error { return syscall.Kill(-j.command.Process.Pid, syscall.SIGKILL) }

// terminate has the job end, as a scheduler does before it takes the node away.
func (j *job) terminate(t *testing.T) {
	t.Helper()
	if err := j.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// kill ends the job without a word, as the kernel does when memory is short.
func (j *job) kill(t *testing.T) {
	t.Helper()
	if err := j.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// wantStatus waits for the job's end and checks its exit status, as a shell has it.
func (j *job) wantStatus(t *testing.T, want int) {
	t.Helper()
	var exit *exec.ExitError
	if err := j.command.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	got := j.command.ProcessState.ExitCode()
	if state := j.command.ProcessState.Sys().(syscall.WaitStatus); state.Signaled() {
		got = 128 + int(state.Signal())
	}
	if got != want {
		t.Fatalf("ended with %s, want exit status %d", j.command.ProcessState, want)
	}
}

// running is what the job's turn run logs at its start.
func (j *job) running(t *testing.T) map[string]any {
	t.Helper()
	for line := range strings.Lines(j.log.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == "running" {
			return fields
		}
	}
	t.Fatal("turn run did not log its start")
	return nil
}

func await(t *testing.T, happened <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(eventually):
		t.Fatalf("%s did not happen", what)
	}
}

// tasks is the size of the dataset.
const tasks = 20

// copyDataset copies the weather dataset to a path, with further rows.
func copyDataset(t *testing.T, path string, further ...string) {
	t.Helper()
	dataset, err := os.ReadFile(filepath.Join("..", "testdata", "weather.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range further {
		dataset = append(dataset, row+"\n"...)
	}
	if err := os.WriteFile(path, dataset, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A rollout is one (task, rollout).
type rollout struct{ Task, Rollout int }

// read counts the lines of a rollouts file by their rollout.
func read(t *testing.T, path string) map[rollout]int {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	found := map[rollout]int{}
	in := bufio.NewScanner(file)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var line struct {
			Task    *int `json:"_ng_task_index"`
			Rollout *int `json:"_ng_rollout_index"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil || line.Task == nil || line.Rollout == nil {
			t.Fatalf("%s: %v: %s", path, err, in.Text())
		}
		found[rollout{*line.Task, *line.Rollout}]++
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// wantEachOnce checks that the joined output has a result of every rollout, once, and
// that its metrics are there.
func wantEachOnce(t *testing.T, output string, repeats int) {
	t.Helper()
	found := read(t, output)
	for task := range tasks {
		for index := range repeats {
			if got := found[rollout{task, index}]; got != 1 {
				t.Errorf("rollout %d-%d is there %d times, want once", task, index, got)
			}
			delete(found, rollout{task, index})
		}
	}
	for r := range found {
		t.Errorf("rollout %d-%d is there, and nobody asked for it", r.Task, r.Rollout)
	}
	metrics, err := os.ReadFile(strings.TrimSuffix(output, ".jsonl") + "_aggregate_metrics.json")
	if err != nil || !json.Valid(metrics) {
		t.Errorf("metrics: %v: %s", err, metrics)
	}
}

// wantPrefix checks that a file has grown, if at all, at its end only.
func wantPrefix(t *testing.T, path string, before []byte) {
	t.Helper()
	if now, err := os.ReadFile(path); err != nil || !bytes.HasPrefix(now, before) {
		t.Errorf("%s has not only grown: %v", path, err)
	}
}

// shardFile is the rollouts file of a shard.
func shardFile(output string, part, of int) string {
	return fmt.Sprintf("%s.shard-%02d-of-%02d.jsonl", strings.TrimSuffix(output, ".jsonl"), part, of)
}
