package collect

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/filelock"
	"example.com/turn/internal/rawjson"
)

// A watched file tells what is done to it, in what order.
type watched struct {
	*os.File
	done   []string
	broken map[string]error // what fails
	looked func()           // is called, once, when somebody has looked at the file
}

func watch(t *testing.T, text string) *watched {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &watched{File: file, broken: map[string]error{}}
}

// output is the file as a run has it.
func (w *watched) output(t *testing.T) *output {
	t.Helper()
	o, err := newOutput(w.Name(), w.File, false)
	if err != nil {
		t.Fatal(err)
	}
	o.file = w
	return o
}

func (w *watched) does(what string) error {
	if err := w.broken[what]; err != nil {
		return err
	}
	w.done = append(w.done, what)
	return nil
}

func (w *watched) WriteAt(p []byte, at int64) (int, error) {
	if err := w.does("write"); err != nil {
		return 0, err
	}
	return w.File.WriteAt(p, at)
}

func (w *watched) Write(p []byte) (int, error) {
	if err := w.does("write"); err != nil {
		return 0, err
	}
	return w.File.Write(p)
}

func (w *watched) Stat() (os.FileInfo, error) {
	info, err := w.File.Stat()
	if looked := w.looked; looked != nil {
		w.looked = nil
		looked()
	}
	return info, err
}

func (w *watched) Sync() error { return errors.Join(w.does("sync"), w.File.Sync()) }

func (w *watched) Truncate(size int64) error {
	return errors.Join(w.does("truncate"), w.File.Truncate(size))
}

func (w *watched) Close() error { return errors.Join(w.does("close"), w.File.Close()) }

func (w *watched) want(t *testing.T, text string, done ...string) {
	t.Helper()
	if diff := cmp.Diff(done, w.done); diff != "" {
		t.Errorf("what was done (-want +got):\n%s", diff)
	}
	if got, err := os.ReadFile(w.Name()); err != nil || string(got) != text {
		t.Errorf("the file has %.100q, %v, want %.100q", got, err, text)
	}
}

func line(text string) rawjson.Body { return rawjson.Body{[]byte(text)} }

// Lines are on disk when they count: those that come together with one fsync, which
// comes last.
func TestLinesAreOnDiskWhenTheyAreWritten(t *testing.T) {
	w := watch(t, "a\n")
	if err := w.output(t).write(line("b"), line("c")); err != nil {
		t.Fatal(err)
	}
	w.want(t, "a\nb\nc\n", "write", "sync")

	long := strings.Repeat("x", 100_000)
	w = watch(t, "")
	if err := w.output(t).write(line(long), line("c")); err != nil {
		t.Fatal(err)
	}
	if last := len(w.done) - 1; w.done[last] != "sync" || strings.Count(strings.Join(w.done, " "), "sync") != 1 {
		t.Errorf("done: %s, want one sync, at the end", w.done)
	}
}

// A line that is written while another looks at the file is no sign that it was cut.
func TestAFileIsLookedAtWhileItIsWritten(t *testing.T) {
	w := watch(t, "a\n")
	o := w.output(t)
	w.looked = func() {
		if err := o.write(line("b")); err != nil {
			t.Error(err)
		}
	}
	if err := o.stillThere(); err != nil {
		t.Error(err)
	}
	w.want(t, "a\nb\n", "write", "sync")
}

// A line of which nobody knows whether it is on disk is taken back, and nothing is
// written behind it.
func TestALineThatIsNotOnDisk(t *testing.T) {
	for _, what := range []string{"write", "sync"} {
		w := watch(t, "a\n")
		full := errors.New("no room")
		w.broken[what] = full
		o := w.output(t)
		var broken *OutputError
		if err := o.write(line("b")); !errors.As(err, &broken) || !errors.Is(err, full) || broken.File != w.Name() {
			t.Errorf("%s: got %v", what, err)
		}
		w.broken, w.done = nil, nil
		if err := o.write(line("c")); !errors.Is(err, full) {
			t.Errorf("%s: the next line: got %v, want the same", what, err)
		}
		w.want(t, "a\n")
	}
}

// What a killed run has left of a line is gone for good, or its line whole, before
// anything is written behind it.
func TestATailIsMendedOnDisk(t *testing.T) {
	for _, test := range []struct {
		before, after string
		tail          tail
		done          []string
	}{
		{"a\nb", "a\n", tail{at: 2, size: 1}, []string{"truncate", "sync"}},
		{"a\nb", "a\nb\n", tail{at: 2, size: 1, whole: true}, []string{"write", "truncate", "sync"}},
		{"a\n", "a\n", tail{at: 2}, nil},
	} {
		w := watch(t, test.before)
		o := w.output(t)
		if err := o.mend(test.tail, func(string) {}); err != nil {
			t.Fatal(err)
		}
		w.want(t, test.after, test.done...)
		w.done = nil
		if err := o.write(line("c")); err != nil {
			t.Fatal(err)
		}
		w.want(t, test.after+"c\n", "write", "sync")
	}
}

// A file that takes another's place is on disk before it does.
func TestANewFileIsOnDiskBeforeItIsClosed(t *testing.T) {
	w := watch(t, "")
	err := fill(w.Name(), w, func(w io.Writer) error {
		_, err := io.WriteString(w, "a\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.want(t, "a\n", "write", "sync", "close")
}

// Where there are no locks a run says so, and goes on.
func TestAFileSystemWithoutLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	for range 2 { // at once: nobody keeps the second away
		var notes []string
		o, err := own(path, func(*os.File) error { return filelock.ErrNoLocks }, func(note string) { notes = append(notes, note) })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = o.close() }()
		if want := path + ": the file system has no locks: see to it yourself that no other run writes to this output"; len(notes) != 1 || notes[0] != want {
			t.Errorf("notes %q, want %q", notes, want)
		}
	}
}

// wantClosed checks that a file that is nobody's is not held.
func wantClosed(t *testing.T, file *os.File) {
	t.Helper()
	if _, err := file.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("%s is still open: %v", file.Name(), err)
	}
}

// A lock on a file that its owner has just taken away is none: another may have made
// the file anew.
func TestALockOnAFileThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	taken := 0
	var last *os.File
	o, err := own(path, func(file *os.File) error {
		if taken++; taken == 1 { // its owner is gone by now, and so is the file
			last = file
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		return filelock.Lock(file)
	}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.close() }()
	if err := o.stillThere(); err != nil || taken != 2 {
		t.Errorf("it was locked %d times, and then %v; want twice, and the file that is there", taken, err)
	}
	wantClosed(t, last)
	_, err = own(path, func(file *os.File) error { last = file; return filelock.Lock(file) }, func(string) {})
	if !errors.As(err, new(*OwnedError)) {
		t.Errorf("another may have it: %v", err)
	}
	wantClosed(t, last)
}

// One that is taken away whenever it is made is said.
func TestAFileThatNobodyCanOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	_, err := own(path, func(*os.File) error { return os.Remove(path) }, func(string) {})
	var broken *OutputError
	if !errors.As(err, &broken) || broken.File != path {
		t.Errorf("got %v, want an error that names %s", err, path)
	}
}

// Lines that wait together go to disk together, with one fsync a file, and no more of
// them than may be.
func TestLinesThatWaitGoToDiskTogether(t *testing.T) {
	const rounds = 5 // of as many lines as may go together, half of them of each file; the last is short
	results, failed := watch(t, ""), watch(t, "")
	w := &writer{results: results.output(t), failures: failed.output(t), waiting: make(chan entry, rounds*maxGroup), ended: make(chan struct{})}
	var dones []chan error
	var texts [2]strings.Builder
	for n := range rounds*maxGroup - 10 {
		done := make(chan error, 1)
		dones = append(dones, done)
		text := strconv.Itoa(n)
		texts[n%2].WriteString(text + "\n")
		w.waiting <- entry{[]*output{w.results, w.failures}[n%2], line(text), done}
	}
	go w.loop()
	w.close()
	for n, done := range dones {
		if len(done) != 1 {
			t.Fatalf("whoever waits for line %d is not told of it", n)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	done := slices.Repeat([]string{"write", "sync"}, rounds)
	results.want(t, texts[0].String(), done...)
	failed.want(t, texts[1].String(), done...)
}

// A run that is to drain does not pass over all that is settled first.
func TestADrainIsHeardWhileRowsArePassedOver(t *testing.T) {
	w := watch(t, `{"_ng_task_index":0,"_ng_rollout_index":0}`+"\n"+`{"_ng_task_index":1,"_ng_rollout_index":0}`+"\n")
	rows, err := openInputs(w.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.close()
	drained := make(chan struct{})
	close(drained)
	c := &collector{config: Config{Drain: drained}, past: newPast(), queue: queue{rows: rows}}
	c.past.results[key{0, 0}] = result{}
	if _, _, ok, err := c.next(); ok || err != nil {
		t.Errorf("a row begins: %t, %v", ok, err)
	}
	if row, ok, err := c.queue.row(); !ok || err != nil || row.key.task != 1 {
		t.Errorf("the next row is %+v, %t, %v, want the one behind the first that is settled", row.key, ok, err)
	}
}
