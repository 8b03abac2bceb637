package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// testFull is set to run the tests of this package at full size: make full.
const testFull = "TURN_TEST_FULL"

// fullSize is one of two sizes: the gate's, or the full one.
func fullSize(gate, full int) int {
	if os.Getenv(testFull) != "" {
		return full
	}
	return gate
}

// enough says when a test has done something often enough: as often as the gate or
// the full size has it, or, in the gate, for as long as a test there may take.
func enough(gate, full int) func(times int) bool {
	if os.Getenv(testFull) != "" {
		return func(times int) bool { return times >= full }
	}
	end := time.Now().Add(15 * time.Second)
	return func(times int) bool { return times >= gate || time.Now().After(end) }
}

// chance is a source of random numbers. A test that fails says its seed, and with
// that in TURN_TEST_SEED it draws the same again.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("TURN_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("TURN_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}

// A rolloutName is the name of a rollout, as its rollout id has it.
type rolloutName string

func nameOf(task, rollout int64) rolloutName {
	return rolloutName(fmt.Sprintf("%d-%d", task, rollout))
}

// An attemptName names an attempt at a rollout.
type attemptName struct {
	rollout rolloutName
	attempt int
}

// errands are the tasks of a run that is interrupted, in two rollouts each, and what
// comes of them: fourths of the rollouts fail once or twice before they have a
// result, sevenths of the tasks are masked, and some of the lines are longer than
// what is written at once.
type errands struct{ tasks int }

const errandRepeats = 2

// refusals is how many attempts at a rollout of a task fail.
func (e errands) refusals(task int) int {
	switch {
	case task%8 == 0:
		return 2
	case task%4 == 0:
		return 1
	}
	return 0
}

func (e errands) masked(task int) bool { return task%7 == 0 }

func (e errands) size(task int) int {
	if task%5 == 0 {
		return 150_000
	}
	return 500
}

// write writes the dataset and returns its path.
func (e errands) write(t *testing.T) string {
	t.Helper()
	rows := make([]string, e.tasks)
	for i := range rows {
		rows[i] = fmt.Sprintf(`{"responses_create_params":{"input":"hi"},"n":%d}`, i)
	}
	return rowsOf(t, rows...)
}

// ServeHTTP is both servers. What it says depends on the rollout and the attempt
// alone, whenever that comes.
func (e errands) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(rand.N(4 * time.Millisecond)) // so that a run takes longer than its start
	if strings.HasSuffix(r.URL.Path, "/v1/responses") {
		task, refused := e.turn(r.URL.Path)
		if refused {
			http.Error(w, `"out of memory"`, http.StatusInternalServerError)
			return
		}
		newStub(e.size(task)).ServeHTTP(w, r)
		return
	}
	if r.URL.Path == "/verify" {
		var verdict struct {
			N        int             `json:"n"`
			Response json.RawMessage `json:"response"`
		}
		if err := json.NewDecoder(r.Body).Decode(&verdict); err != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = fmt.Fprintf(w, `{"responses_create_params":{},"response":%s,"reward":1,"mask_sample":%v}`, verdict.Response, e.masked(verdict.N))
		return
	}
	stub{}.ServeHTTP(w, r)
}

// turn is the task of an agent's turn, by its path, and whether its attempt fails.
func (e errands) turn(path string) (task int, refused bool) {
	var rollout, attempt int
	_, _ = fmt.Sscanf(path, "/ng-rollout/%d-%d-a%d", &task, &rollout, &attempt) // attempt 0 has no -a
	return task, attempt < e.refusals(task)
}

// A trial is a run of the errands that is interrupted and resumed until it is
// complete, and what its files held when it was last looked at.
type trial struct {
	errands
	servers *scripted.Servers
	out     string
	args    []string // of each run, but for --resume

	done   map[rolloutName]bool // with a whole line in the rollouts file
	failed map[rolloutName]int  // whole lines in the failures file
}

func newTrial(t *testing.T, e errands, dataset string, servers *scripted.Servers, args ...string) *trial {
	t.Helper()
	out := filepath.Join(t.TempDir(), "r.jsonl")
	servers.Play(nil)
	servers.Front(e, e)
	return &trial{
		errands: e,
		servers: servers,
		out:     out,
		args:    append([]string{"run", dataset, "-o", out, "--repeats", strconv.Itoa(errandRepeats), "--concurrency", "8", "--retry-backoff", "1ms"}, args...),
	}
}

// against are the arguments of a run that drives the servers itself.
func against(servers *scripted.Servers) []string {
	return []string{"--resources", servers.ResourcesURL, "--agent", servers.AgentURL}
}

// resume starts the run once more, and returns it when it has begun to prepare.
func (tr *trial) resume(t *testing.T) *process {
	t.Helper()
	tr.servers.Play(nil)
	p := start(t, append(tr.args, "--resume")...)
	p.awaitLog(t, "running")
	return p
}

// look reads the files as an interruption has left them. Lines are whole, and the
// rollouts' are never fewer than before nor of one rollout twice; a torn last line
// is let pass where the run had no time to do anything about it.
func (tr *trial) look(t *testing.T, torn bool) {
	t.Helper()
	files := collect.FilesOf(tr.out)
	done, failed := map[rolloutName]bool{}, map[rolloutName]int{}
	for _, line := range wholeLines(t, files.Rollouts, torn) {
		name := line.name()
		if done[name] {
			t.Errorf("rollout %s has two results", name)
		}
		done[name] = true
	}
	for _, line := range wholeLines(t, files.Failures, torn) {
		name := line.name()
		if line.Attempt != failed[name] {
			t.Errorf("failure %d of rollout %s is of attempt %d", failed[name], name, line.Attempt)
		}
		failed[name]++
	}
	for name := range tr.done {
		if !done[name] {
			t.Errorf("the result of rollout %s is gone", name)
		}
	}
	for name, before := range tr.failed {
		if failed[name] < before {
			t.Errorf("rollout %s had %d failures and has %d", name, before, failed[name])
		}
	}
	if inputs := wholeLines(t, files.Inputs, false); inputs != nil && len(inputs) != tr.tasks*errandRepeats {
		t.Errorf("%d lines of materialised inputs, want all %d or no file", len(inputs), tr.tasks*errandRepeats)
	}
	if text, err := os.ReadFile(files.Aggregate); err == nil && !json.Valid(text) {
		t.Errorf("the aggregate metrics are not JSON: %s", text)
	}
	tr.done, tr.failed = done, failed
}

// seeds are the attempts that a run has begun, in order.
func (tr *trial) seeds(t *testing.T) []attemptName {
	t.Helper()
	var seeds []attemptName
	for _, call := range tr.servers.Calls() {
		if call.Route != scripted.Seed || len(call.Body) == 0 { // one that was cut off has none
			continue
		}
		var body struct {
			ID struct {
				Rollout rolloutName `json:"rollout_id"`
				Attempt int         `json:"attempt"`
			} `json:"episode_id"`
		}
		if err := json.Unmarshal(call.Body, &body); err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, attemptName{body.ID.Rollout, body.ID.Attempt})
	}
	return seeds
}

// noneAgain checks that a run has begun nothing that was on disk before it.
func (tr *trial) noneAgain(t *testing.T, before trial) {
	t.Helper()
	for _, seed := range tr.seeds(t) {
		if before.done[seed.rollout] {
			t.Errorf("rollout %s had a result on disk and was seeded again", seed.rollout)
		}
		if seed.attempt < before.failed[seed.rollout] {
			t.Errorf("attempt %d at rollout %s was made again: %d failures were on disk", seed.attempt, seed.rollout, before.failed[seed.rollout])
		}
	}
}

// complete checks the files of a run that is complete: all is in them, and no other
// file is there.
func (tr *trial) complete(t *testing.T) {
	t.Helper()
	tr.allIn(t, tr.out)
	tr.noLitter(t)
}

// allIn checks the files of complete outputs: every rollout is there once, with as many
// failures before it as its servers have for it, and nothing else is.
func (tr *trial) allIn(t *testing.T, outputs ...string) {
	t.Helper()
	type outcome struct {
		Results, Failures, Attempt int
		Masked                     bool
	}
	got, want := map[rolloutName]outcome{}, map[rolloutName]outcome{}
	for _, output := range outputs {
		files := collect.FilesOf(output)
		for _, line := range wholeLines(t, files.Rollouts, false) {
			o := got[line.name()]
			o.Results++
			o.Attempt, o.Masked = line.Attempt, line.Masked
			got[line.name()] = o
		}
		for _, line := range wholeLines(t, files.Failures, false) {
			o := got[line.name()]
			o.Failures++
			got[line.name()] = o
		}
	}
	for task := range tr.tasks {
		for rollout := range errandRepeats {
			want[nameOf(int64(task), int64(rollout))] = outcome{1, tr.refusals(task), tr.refusals(task), tr.masked(task)}
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("what is on disk of each rollout (-want +got):\n%s", diff)
	}
}

// noLitter checks that the four files are there and no other.
func (tr *trial) noLitter(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(tr.out))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if diff := gocmp.Diff([]string{"r.jsonl", "r_aggregate_metrics.json", "r_failures.jsonl", "r_materialized_inputs.jsonl"}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// A keptLine is what these tests look at of a line of an output file.
type keptLine struct {
	Task     int64  `json:"_ng_task_index"`
	Rollout  int64  `json:"_ng_rollout_index"`
	Attempt  int    `json:"_ng_attempt_index"`
	Masked   bool   `json:"mask_sample"`
	Delivery string `json:"_ng_failure_delivery"`
}

func (l keptLine) name() rolloutName { return nameOf(l.Task, l.Rollout) }

// wholeLines reads the lines of a file, of which the last may be torn or not; nil
// when there is no file.
func wholeLines(t *testing.T, path string, torn bool) []keptLine {
	t.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := []keptLine{}
	for raw := range bytes.Lines(text) {
		var line keptLine
		switch err := json.Unmarshal(raw, &line); {
		case !bytes.HasSuffix(raw, []byte("\n")) && torn:
		case err != nil || !bytes.HasSuffix(raw, []byte("\n")):
			t.Fatalf("%s: line %d of %d bytes is not whole: %v", filepath.Base(path), len(lines)+1, len(raw), err)
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

// A moment is one at which a run is interrupted: after a time, or when its rollouts
// file has a size, which is as a rule when a line is being written.
type moment struct {
	after time.Duration
	size  int64 // 0: no matter
}

// drawMoment draws one from the time that a whole run takes and the size that its
// file has then.
func drawMoment(random *rand.Rand, within time.Duration, size int64) moment {
	if random.IntN(2) == 0 {
		return moment{after: upTo(random, within)}
	}
	return moment{after: within, size: random.Int64N(size)}
}

// come waits for the moment, or until the run has ended by itself.
func (m moment) come(path string, ended <-chan struct{}) {
	timer := time.NewTimer(m.after)
	defer timer.Stop()
	for {
		select {
		case <-ended:
			return
		case <-timer.C:
			return
		case <-m.looks():
			if info, err := os.Stat(path); err == nil && info.Size() > m.size {
				return
			}
		}
	}
}

// looks is ready at once when the size of the file matters, as fast as it may grow.
func (m moment) looks() <-chan time.Time {
	if m.size == 0 {
		return nil
	}
	return time.After(0)
}

// interrupt sends a signal to a run at a moment, and returns how it ended: maybe by
// itself, before.
func (tr *trial) interrupt(t *testing.T, p *process, m moment, signal syscall.Signal) syscall.WaitStatus {
	t.Helper()
	m.come(tr.out, p.ended)
	if err := p.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	return p.awaitExit(t)
}

// measure has a run be left alone, checks that it is complete then, and returns the
// time that it took and the size of its rollouts file.
func (tr *trial) measure(t *testing.T) (took time.Duration, size int64) {
	t.Helper()
	p := tr.resume(t)
	began := time.Now()
	if status := p.awaitExit(t); status.ExitStatus() != 0 {
		t.Fatalf("exit status %d, want 0", status.ExitStatus())
	}
	took = time.Since(began)
	tr.complete(t)
	info, err := os.Stat(tr.out)
	if err != nil {
		t.Fatal(err)
	}
	return took, info.Size()
}

// A run that is killed at any moment and resumed until it is complete has every
// rollout once, makes nothing again that was on disk, and leaves nothing but its
// files.
func TestARunKilledAtAnyMomentGoesOnWhereItWas(t *testing.T) {
	random, servers, e := chance(t), scripted.New(t), errands{20}
	dataset := e.write(t)
	within, size := newTrial(t, e, dataset, servers, against(servers)...).measure(t)
	for kills, enough := 0, enough(25, 200); !enough(kills) && !t.Failed(); {
		tr := newTrial(t, e, dataset, servers, against(servers)...)
		for {
			before := *tr
			status := tr.interrupt(t, tr.resume(t), drawMoment(random, within, size), syscall.SIGKILL)
			tr.look(t, status.Signaled())
			tr.noneAgain(t, before)
			if t.Failed() {
				return
			}
			if !status.Signaled() {
				if status.ExitStatus() != 0 {
					t.Fatalf("exit status %d, want 0", status.ExitStatus())
				}
				break
			}
			kills++
			for _, path := range []string{collect.FilesOf(tr.out).Rollouts, collect.FilesOf(tr.out).Failures} {
				if random.IntN(4) == 0 {
					tear(t, path, random)
				}
			}
		}
		tr.complete(t)
	}
}

// A run that is killed while it still prepares has changed nothing: what an earlier
// run has left is as it was, and what is half written is nobody's in the next run.
func TestARunKilledWhileItPrepares(t *testing.T) {
	servers, e := scripted.New(t), errands{20}
	dataset := e.write(t)
	rows, err := os.ReadFile(dataset)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		first []string // an earlier run; nil: there is none
		again []string // the one that is killed, and after it another
	}{
		{"a new output", nil, nil},
		{"one that is resumed", []string{"--limit", "7"}, []string{"--resume"}},
		{"one that is replaced", []string{"--limit", "7"}, []string{"--overwrite"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := newTrial(t, e, dataset, servers, append(against(servers), "--taskset", "errands")...)
			if test.first != nil {
				start(t, append(tr.args, test.first...)...).wantExit(t, 0)
			}
			dir := filepath.Dir(tr.out)
			before := filesIn(t, dir)
			args := append(slices.Clone(tr.args), test.again...)
			args[1] = "-"
			half := collect.FilesOf(tr.out).Inputs + ".next"
			killWhileItReads(t, half, rows, args)
			after := filesIn(t, dir)
			if after[filepath.Base(half)] == "" {
				t.Error("it was killed before it had written anything")
			}
			delete(after, filepath.Base(half))
			if test.first == nil {
				before = map[string]string{"r.jsonl": ""} // which is what it is locked by
			}
			if diff := gocmp.Diff(before, after); diff != "" {
				t.Errorf("files (-before +after):\n%s", diff)
			}
			start(t, append(tr.args, test.again...)...).wantExit(t, 0)
			tr.complete(t)
		})
	}
}

// killWhileItReads starts a run that reads rows from its standard input, and kills it
// when it has written some of what they owe and waits for more.
func killWhileItReads(t *testing.T, half string, rows []byte, args []string) {
	t.Helper()
	stdin, dataset, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(stdin.Close(), dataset.Close()) }()
	p := startWith(t, stdin, args...)
	p.awaitLog(t, waitingForDataset)
	enough := bytes.Repeat(rows, 1<<20/len(rows)) // more than is held back before it is written
	if _, err := dataset.Write(enough); err != nil {
		t.Fatal(err)
	}
	moment{after: time.Minute, size: 1}.come(half, p.ended)
	p.signal(t, syscall.SIGKILL)
	if status := p.awaitExit(t); !status.Signaled() {
		t.Errorf("ended with %v before it was killed", status)
	}
}

// tear has a file of lines end within one, as a power failure may leave it: the
// moment for that is short, and a busy machine misses it. It returns false where the
// file ends so already, or has no line.
func tear(t *testing.T, path string, random *rand.Rand) bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	if len(lines) < 2 || len(lines[len(lines)-1]) > 0 {
		return false
	}
	line := lines[random.IntN(len(lines)-1)]
	torn := line[:1+random.IntN(len(line)-2)] // without its last bracket
	if err := os.WriteFile(path, slices.Concat(text, torn), 0o644); err != nil {
		t.Fatal(err)
	}
	return true
}

// A run that is told to stop at any moment says so with its exit status, closes all
// that it has opened, leaves whole lines, and goes on where it was.
func TestARunStoppedAtAnyMomentGoesOnWhereItWas(t *testing.T) {
	random, servers, e := chance(t), scripted.New(t), errands{20}
	dataset := e.write(t)
	within, size := newTrial(t, e, dataset, servers, against(servers)...).measure(t)
	for stops, enough := 0, enough(15, 200); !enough(stops) && !t.Failed(); {
		grace := upTo(random, 20*time.Millisecond)
		tr := newTrial(t, e, dataset, servers, append(against(servers), "--grace", grace.String())...)
		for {
			before := *tr
			status := tr.interrupt(t, tr.resume(t), drawMoment(random, within, size), syscall.SIGTERM)
			tr.look(t, false)
			tr.noneAgain(t, before)
			allClosed(t, tr.servers)
			// A signal that comes when all is done ends what is left of the process.
			late := status.Signaled() && len(tr.done) == tr.tasks*errandRepeats
			if got := status.ExitStatus(); got != 0 && got != 143 && !late {
				t.Errorf("ended with %v (exit status %d), want 143, or 0 when all was done", status, got)
			}
			if t.Failed() {
				return
			}
			if status.ExitStatus() == 0 {
				break
			}
			stops++
		}
		tr.complete(t)
	}
}

// allClosed checks that every session that was opened was closed.
func allClosed(t *testing.T, servers *scripted.Servers) {
	t.Helper()
	closed := map[string]bool{}
	calls := servers.Calls()
	for _, call := range calls {
		if call.Route == scripted.CloseSession || call.Route == scripted.AgentClose {
			closed[sessionOf(call)] = true
		}
	}
	for _, call := range calls {
		if id := sessionOf(call); (call.Route == scripted.Seed || call.Route == scripted.AgentSeed) && id != "" && !closed[id] {
			t.Errorf("session %s is left open", id)
		}
	}
}

// sessionOf is the session that a call is about; "" of one that was cut off before
// it had said so.
func sessionOf(call scripted.Call) string {
	return cmp.Or(string(valueOf(call.Body, "resources_session_id")), string(valueOf(call.Body, "agent_session_id")))
}

// A run whose environment server is killed and started again, and again, ends with
// every rollout once, and has no attempt made twice.
func TestARunOutlivesItsEnvironmentServer(t *testing.T) {
	random, servers, e := chance(t), scripted.New(t), errands{20}
	dataset := e.write(t)
	port := freePort(t)
	environment := func() *process {
		p := start(t, "serve", "--listen", "127.0.0.1:"+port, "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "--max-attempts", "1")
		p.awaitLog(t, "listening")
		return p
	}
	serving := environment()
	flags := []string{"--environment", "http://127.0.0.1:" + port, "--max-attempts", "1000"}
	within, _ := newTrial(t, e, dataset, servers, flags...).measure(t)
	for kills, enough := 0, enough(10, 200); !enough(kills) && !t.Failed(); {
		tr := newTrial(t, e, dataset, servers, flags...)
		run := tr.resume(t)
		for over := false; !over; {
			select {
			case <-run.ended:
				over = true
				run.wantExit(t, 0)
			case <-time.After(upTo(random, within)):
				serving.signal(t, syscall.SIGKILL)
				serving.awaitExit(t)
				kills++
				time.Sleep(upTo(random, 20*time.Millisecond)) // for which nobody listens
				serving = environment()
			}
		}
		tr.outlived(t)
	}
}

// outlived checks the files of a run that has lost attempts to something else than
// its servers' refusals.
func (tr *trial) outlived(t *testing.T) {
	t.Helper()
	files := collect.FilesOf(tr.out)
	begun := map[attemptName]int{}
	for _, seed := range tr.seeds(t) {
		if begun[seed]++; begun[seed] == 2 {
			t.Errorf("attempt %d at rollout %s was made twice", seed.attempt, seed.rollout)
		}
	}
	failed := map[rolloutName]int{}
	for _, line := range wholeLines(t, files.Failures, false) {
		name := line.name()
		if line.Attempt != failed[name] {
			t.Errorf("failure %d of rollout %s is of attempt %d", failed[name], name, line.Attempt)
		}
		failed[name]++
		if line.Delivery == string(collect.NotSent) && begun[attemptName{name, line.Attempt}] > 0 {
			t.Errorf("attempt %d at rollout %s is said not to have been sent, and was seeded", line.Attempt, name)
		}
	}
	results := map[rolloutName]int{}
	for _, line := range wholeLines(t, files.Rollouts, false) {
		name := line.name()
		results[name]++
		if line.Attempt != failed[name] {
			t.Errorf("rollout %s has %d failures and its result is of attempt %d", name, failed[name], line.Attempt)
		}
	}
	want := map[rolloutName]int{}
	for task := range tr.tasks {
		for rollout := range errandRepeats {
			want[nameOf(int64(task), int64(rollout))] = 1
		}
	}
	if diff := gocmp.Diff(want, results); diff != "" {
		t.Errorf("results of each rollout (-want +got):\n%s", diff)
	}
	tr.noLitter(t)
}

// freePort is one that nobody listens on, and that the system gives to nobody who
// does not ask for it: a connection from an ephemeral port could have taken it when
// it is needed again.
func freePort(t *testing.T) string {
	t.Helper()
	for port := 20000 + rand.IntN(5000); port < 30000; port++ {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if listener, err := net.Listen("tcp", address); err == nil {
			_ = listener.Close()
			return strconv.Itoa(port)
		}
	}
	t.Fatal("no port is free")
	return ""
}
