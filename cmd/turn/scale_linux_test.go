package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/turn/internal/collect"
)

// buildTurn builds the program as it is shipped: with the race detector, as this test
// may be, it takes several times the memory.
func buildTurn(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "turn")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// bigRows writes a dataset of n rows of that many bytes, and returns its path.
func bigRows(t *testing.T, n, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tasks.jsonl")
	const row = `{"responses_create_params":{"input":"hi"},"task_id":"t-%d","context":"%s"}` + "\n"
	context := strings.Repeat("y", size-len(row))
	writeLines(t, path, n, func(w *bufio.Writer, i int) { fmt.Fprintf(w, row, i, context) })
	return path
}

func writeLines(t *testing.T, path string, n int, line func(w *bufio.Writer, i int)) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriterSize(file, 1<<20)
	for i := range n {
		line(w, i)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// peak waits for the end of a process, which must be a good one, and returns the most
// memory that it had. What the system says of a dead child is no good: it begins with
// what its parent had.
func (p *process) peak(t *testing.T, within time.Duration) (bytes int64) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(within)
	for {
		select {
		case <-tick.C:
			bytes = max(bytes, highWater(p.Process.Pid))
		case <-p.ended:
			if p.waited != nil {
				t.Fatalf("%s: %v", strings.Join(p.Args, " "), p.waited)
			}
			return bytes
		case <-timeout:
			t.Fatalf("%s has not ended in %v", strings.Join(p.Args, " "), within)
		}
	}
}

// highWater is the most memory that a process has had; 0 when it has ended.
func highWater(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	value, _, _ := strings.Cut(after, "kB")
	kilobytes, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil {
		return 0 // it is a zombie
	}
	return kilobytes << 10
}

const mebibyte = 1 << 20

// A run's memory does not grow with what passes through it: rows, replies and
// results stay on disk, and aggregation reads them from there.
func TestARunsMemoryIsFlat(t *testing.T) {
	const replyBytes = 50_000
	turn, url := buildTurn(t), startStub(t, replyBytes)
	peakOf := func(rows, rowBytes int, settings ...string) int64 {
		out := filepath.Join(t.TempDir(), "r.jsonl")
		defer func() { _ = os.RemoveAll(filepath.Dir(out)) }()
		run := exec.Command(turn, "run", bigRows(t, rows, rowBytes), "-o", out, "--resources", url, "--agent", url, "--concurrency", "16")
		run.Env = settings
		began := time.Now()
		peak := startProgram(t, run).peak(t, time.Hour)
		t.Logf("%d rows: at most %d MiB, in %v", rows, peak/mebibyte, time.Since(began))
		wantAggregated(t, out, rows)
		return peak
	}
	if rows := fullSize(0, 200_000); rows > 0 {
		const most = 256_000_000
		if peak := peakOf(rows, 5_000); peak > most {
			t.Errorf("%d rows took %d bytes of memory, want %d at most", rows, peak, most)
		}
		return
	}
	const few, many, rowBytes = 300, 1_200, 50_000
	const frugal = "GOGC=20" // for what is garbage is no matter
	grown := peakOf(many, rowBytes, frugal) - peakOf(few, rowBytes, frugal)
	if held := int64((many - few) * rowBytes); grown > held/2 {
		t.Errorf("%d more rows took %d MiB more memory, where holding them takes %d", many-few, grown/mebibyte, held/mebibyte)
	}
}

// wantAggregated checks that a server was sent each result for its metrics, without
// what is large in it.
func wantAggregated(t *testing.T, out string, rows int) {
	t.Helper()
	text, err := os.ReadFile(collect.FilesOf(out).Aggregate)
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct {
		Metrics struct{ Bytes int } `json:"agent_metrics"`
	}
	if err := json.Unmarshal(text, &entries); err != nil || len(entries) != 1 {
		t.Fatalf("aggregate metrics %s, %v; want those of one server", text, err)
	}
	if each := entries[0].Metrics.Bytes / rows; each < 100 || each > 1000 {
		t.Errorf("%d bytes of each result were sent for its metrics", each)
	}
}

// A dataset of any length is prepared, and resumed when all of it has been done, in less
// than a millisecond a row, and in less than a kilobyte of memory each.
func TestALongDatasetIsPreparedAndResumedQuickly(t *testing.T) {
	rows := fullSize(20_000, 1_000_000)
	within := time.Duration(fullSize(20, 180)) * time.Second
	turn, url := buildTurn(t), startStub(t, 100)
	dataset, out := bigRows(t, rows, 2_000), filepath.Join(t.TempDir(), "r.jsonl")
	args := []string{"run", dataset, "-o", out, "--resources", url, "--agent", url, "--grace", "0s"}

	began := time.Now()
	p := startProgram(t, exec.Command(turn, args...))
	for !isThere(t, collect.FilesOf(out).Inputs) {
		if time.Since(began) > within {
			t.Fatalf("%d rows are not prepared in %v", rows, within)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%d rows were prepared in %v", rows, time.Since(began))
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 143)

	writeLines(t, out, rows, func(w *bufio.Writer, i int) {
		fmt.Fprintf(w, `{"responses_create_params":{},"response":{},"reward":1,"_ng_task_index":%d,"_ng_rollout_index":0,"_ng_environment_server":"single_agent_turn"}`+"\n", i)
	})
	began = time.Now()
	resumed := startProgram(t, exec.Command(turn, append(args, "--resume")...))
	peak := resumed.peak(t, within)
	t.Logf("%d results were resumed in %v and at most %d MiB", rows, time.Since(began), peak/mebibyte)
	if done := fmt.Sprintf("done      %d of %[1]d rollouts", rows); !resumed.said(done) {
		t.Errorf("the resumption has not said %q", done)
	}
	if most := int64(64*mebibyte + rows*1000); peak > most {
		t.Errorf("%d results took %d bytes of memory to resume, want %d at most", rows, peak, most)
	}
}

func isThere(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}
