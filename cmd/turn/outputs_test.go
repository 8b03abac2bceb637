package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// flatRows writes a dataset of n rows and returns its path.
func flatRows(t *testing.T, n int) string {
	t.Helper()
	rows := make([]string, n)
	for i := range rows {
		rows[i] = fmt.Sprintf(`{"responses_create_params":{"input":"%d"}}`, i)
	}
	return rowsOf(t, rows...)
}

// rowsOf writes a dataset and returns its path.
func rowsOf(t *testing.T, rows ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tasks.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(rows, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// said reports whether a process that has ended has written that text.
func (p *process) said(text string) bool {
	for range p.lines { // until all of it is read
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.log.String(), text)
}

// wantExit waits for the end of a process and checks its exit status and that it has
// written each of the texts.
func (p *process) wantExit(t *testing.T, status int, texts ...string) {
	t.Helper()
	if got := p.awaitExit(t); got.ExitStatus() != status {
		t.Errorf("%s\nended with %v (exit status %d), want %d", strings.Join(p.Args[1:], " "), got, got.ExitStatus(), status)
	}
	for _, text := range texts {
		if !p.said(text) {
			t.Errorf("%s\nhas not said %q", strings.Join(p.Args[1:], " "), text)
		}
	}
}

// The second signal ends a run in the middle of its grace, at once: nothing is
// closed any more, and its files can be resumed all the same.
func TestASecondSignalEndsARunAtOnce(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{}, {}, {}, {}, {Hang: true}}})
	out := filepath.Join(t.TempDir(), "r.jsonl")
	args := append([]string{"run", flatRows(t, 40), "-o", out, "--concurrency", "16", "--grace", "1h"}, against(servers)...)
	p := start(t, args...)
	awaitCall(t, servers, scripted.Responses, 20)
	p.signal(t, syscall.SIGTERM)
	p.awaitLog(t, "stopping: no new episode starts; a second signal ends at once")
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 143, "turn: ended at once; the sessions of what was under way are left open")
	if got := countRoutes(servers); got[scripted.Seed] != 20 || got[scripted.AgentClose] != 4 {
		t.Errorf("calls %v, want 20 seeds and 4 closes", got)
	}
	if got := wholeLines(t, out, false); len(got) != 4 {
		t.Errorf("%d results, want 4", len(got))
	}
	servers.Play(nil)
	start(t, append(args, "--resume")...).wantExit(t, 0)
	if got := countRoutes(servers)[scripted.Seed]; got != 36 {
		t.Errorf("the resumption seeded %d sessions, want 36", got)
	}
}

// Signals that come together are one: timeout(1) sends its to its command and to the
// group that this is in. Of different ones none is lost on the way, so that this test
// sends such.
func TestSignalsThatComeTogether(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	args := append([]string{"run", flatRows(t, 4), "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--grace", "0s"}, against(servers)...)
	p := start(t, args...)
	awaitCall(t, servers, scripted.Responses, 4)
	p.signal(t, syscall.SIGTERM)
	p.signal(t, syscall.SIGINT)
	if status := p.awaitExit(t).ExitStatus(); status != 143 && status != 130 {
		t.Errorf("ended with %d, want 143 or 130", status)
	}
	if got := countRoutes(servers); got[scripted.AgentClose] != 4 || got[scripted.CloseSession] != 4 {
		t.Errorf("calls %v, want each session closed", got)
	}
}

// An environment server has a limit on its episodes, closes and attempts included, of
// which a run knows nothing: it sets none of its own unless it is told to.
func TestTheTimeOfAnEnvironmentServersEpisodes(t *testing.T) {
	for want, more := range map[string][]string{"none": nil, "2s": {"--episode-timeout", "2s"}} {
		args := []string{"run", flatRows(t, 1), "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--environment", "http://127.0.0.1:1", "--max-attempts", "1"}
		p := start(t, append(args, more...)...)
		if got := p.awaitLog(t, "running")["episode_timeout"]; got != want {
			t.Errorf("with %q the limit is %v, want %s", more, got, want)
		}
		p.signal(t, syscall.SIGKILL)
		p.awaitExit(t)
	}
}

// One run owns an output at a time. Another one leaves it as it is, whatever it was
// told to do with it, and may have it as soon as the owner is dead.
func TestOneRunOwnsAnOutput(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{scripted.Responses: {{}, {Hang: true}}})
	dir := t.TempDir()
	out := filepath.Join(dir, "r.jsonl")
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(dir, alias); err != nil {
		t.Fatal(err)
	}
	args := func(out string, more ...string) []string {
		return append(append([]string{"run", flatRows(t, 3), "-o", out, "--concurrency", "1"}, against(servers)...), more...)
	}
	first := start(t, args(out)...)
	awaitCall(t, servers, scripted.Responses, 2)
	before := filesIn(t, dir)
	for _, more := range [][]string{{"--resume"}, {"--overwrite"}} {
		for _, out := range []string{out, filepath.Join(alias, "r.jsonl")} {
			start(t, args(out, more...)...).wantExit(t, 1, "another run is writing to "+out, "Try: wait until it has ended, or another -o")
		}
	}
	if diff := gocmp.Diff(before, filesIn(t, dir)); diff != "" {
		t.Errorf("the second run has changed what the first one writes (-before +after):\n%s", diff)
	}
	if got := countRoutes(servers)[scripted.Seed]; got != 2 {
		t.Errorf("%d sessions were seeded, want the first run's 2", got)
	}

	first.signal(t, syscall.SIGKILL)
	first.awaitExit(t)
	servers.Play(nil)
	start(t, args(out, "--resume")...).wantExit(t, 0)
	if got := countRoutes(servers)[scripted.Seed]; got != 2 {
		t.Errorf("the resumption seeded %d sessions, want 2", got)
	}
}

// filesIn is what the files in a folder hold. Folders, such as a journal, are left out.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(text)
	}
	return files
}

// A run whose output is taken away stops, says which file it was, and closes what it
// has opened.
func TestAnOutputThatIsTakenAway(t *testing.T) {
	refused := scripted.Action{Status: http.StatusInternalServerError}
	for name, test := range map[string]struct {
		next scripted.Action // what the agent replies once the file is gone
		take func(files collect.Files) error
		says func(files collect.Files) string
	}{
		"the rollouts": {
			take: func(files collect.Files) error { return os.Remove(files.Rollouts) },
			says: func(files collect.Files) string { return "cannot write " + files.Rollouts },
		},
		"the failures": {
			next: refused,
			take: func(files collect.Files) error { return os.Remove(files.Failures) },
			says: func(files collect.Files) string { return "cannot write " + files.Failures },
		},
		"the folder": {
			take: func(files collect.Files) error { return os.RemoveAll(filepath.Dir(files.Rollouts)) },
			says: func(files collect.Files) string { return "cannot write " + files.Rollouts },
		},
		"the rollouts, for others": {
			take: func(files collect.Files) error {
				return os.Rename(files.Failures, files.Rollouts)
			},
			says: func(files collect.Files) string {
				return "cannot write " + files.Rollouts + ": it has been replaced by another file"
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			servers, gate := scripted.New(t), make(chan struct{})
			next := test.next
			next.Gate = gate
			servers.Play(scripted.Script{scripted.Responses: {{}, next}})
			files := collect.FilesOf(filepath.Join(t.TempDir(), "out", "r.jsonl"))
			p := start(t, append([]string{"run", flatRows(t, 40), "-o", files.Rollouts, "--concurrency", "2"}, against(servers)...)...)
			awaitCall(t, servers, scripted.Responses, 3) // the first result is on disk, two are in flight
			if err := test.take(files); err != nil {
				t.Fatal(err)
			}
			close(gate)
			p.wantExit(t, 1, test.says(files), "Try: mend that, then the same command with --resume")
			count := countRoutes(servers)
			if seeds := count[scripted.Seed]; seeds != 3 || count[scripted.CloseSession] != seeds || count[scripted.AgentClose] != seeds {
				t.Errorf("calls %v, want 3 sessions of each server, closed", count)
			}
		})
	}
}

// A run whose disk is full stops with whole lines in its files, and goes on where it
// was when there is room again.
func TestARunWithoutRoom(t *testing.T) {
	servers := scripted.New(t)
	const size = 20_000 // of a reply
	servers.Front(nil, newStub(size))
	dataset, out := flatRows(t, 40), filepath.Join(t.TempDir(), "r.jsonl")
	args := append([]string{"run", dataset, "-o", out, "--concurrency", "4"}, against(servers)...)
	const blocks = 256 // of 512 bytes: six replies, and more than the inputs
	p := startProgram(t, exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -f %d && exec "$0" "$@"`, blocks), os.Args[0]}, args...)...))
	p.wantExit(t, 1, "cannot write "+out+":", "next      the same command with --resume runs the ")
	if p.said("file too large\ncannot write") {
		t.Error("the same is said more than once")
	}
	written := wholeLines(t, out, false)
	if len(written) == 0 || len(written) > blocks*512/size {
		t.Errorf("%d results are there, want as many as there is room for", len(written))
	}
	if got := wholeLines(t, collect.FilesOf(out).Failures, false); len(got) != 0 {
		t.Errorf("%d failures, want none", len(got))
	}
	if got := countRoutes(servers)[scripted.Seed]; got == 40 {
		t.Error("every episode was run, want none to begin once there was no room")
	}
	allClosed(t, servers)
	servers.Play(nil)
	start(t, append(args, "--resume")...).wantExit(t, 0)
	if got, want := countRoutes(servers)[scripted.Seed], 40-len(written); got != want {
		t.Errorf("the resumption seeded %d sessions, want %d", got, want)
	}
}

// The exit status of a run says what came of it.
func TestExitStatusesOfARun(t *testing.T) {
	refused, masked := scripted.Action{Status: http.StatusConflict}, `{"responses_create_params":{},"response":{},"reward":1,"mask_sample":true}`
	oneFails := scripted.Script{scripted.Seed: {{Default: true}, refused, {Default: true}}}
	allFail := scripted.Script{scripted.Seed: {refused}}
	allMasked := scripted.Script{scripted.Verify: {{Raw: &masked}}}
	for _, test := range []struct {
		name   string
		script scripted.Script
		flags  []string
		want   int
	}{
		{"all fine", nil, nil, 0},
		{"one fails", oneFails, nil, 3},
		{"one fails, as it may", oneFails, []string{"--allow-partial"}, 0},
		{"one fails and counts", oneFails, []string{"--count-failures-as-zero"}, 3},
		{"all fail", allFail, nil, 3},
		{"all fail, as they may", allFail, []string{"--allow-partial"}, 0},
		{"all fail, as some may, and count", allFail, []string{"--allow-partial", "--count-failures-as-zero"}, 0},
		{"all are masked", allMasked, nil, 3},
		{"all are masked, as they may be", allMasked, []string{"--allow-partial"}, 0},
		{"a part that has no task", nil, []string{"--shard", "9/9"}, 0},
		{"a limit below 0", nil, []string{"--limit", "-1"}, 2},
		{"two targets", nil, []string{"--embedded", "weather"}, 2},
		{"a flag that there is not", nil, []string{"--no-such"}, 2},
		{"a parameter that is not JSON", nil, []string{"--param", "model=gpt"}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := scripted.New(t)
			servers.Play(test.script)
			args := append([]string{"run", flatRows(t, 4), "-o", filepath.Join(t.TempDir(), "r.jsonl"), "--concurrency", "1"}, against(servers)...)
			start(t, slices.Concat(args, test.flags)...).wantExit(t, test.want)
		})
	}
}

// A run that has few descriptors does what it can with them, says what it lacks, closes
// what it opened, and has some left in the end for the metrics.
func TestARunOfFewDescriptors(t *testing.T) {
	servers := scripted.New(t)
	out := filepath.Join(t.TempDir(), "r.jsonl")
	const rows = 200
	args := append([]string{"run", flatRows(t, rows), "-o", out, "--concurrency", "200", "--max-attempts", "50", "--retry-backoff", "10ms"}, against(servers)...)
	p := startProgram(t, exec.Command("sh", append([]string{"-c", `ulimit -n 64; exec "$0" "$@"`, os.Args[0]}, args...)...))
	p.wantExit(t, 0, "ulimit -n")
	files := collect.FilesOf(out)
	if _, err := os.Stat(files.Aggregate); err != nil {
		t.Error(err)
	}
	if got := len(linesOf(t, out)); got != rows {
		t.Errorf("%d results, want %d", got, rows)
	}
	for _, line := range linesOf(t, files.Failures) { // there may be none: calls are sent again
		if reason, _ := line["failure_reason"].(string); line["failure_kind"] != "transport_local_resource" || !strings.Contains(reason, "ulimit -n") {
			t.Errorf("a failure that does not say what is lacking: %v", line)
		}
	}
	allClosed(t, servers)
}
