package progress_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/turn/internal/progress"
)

// A held terminal takes nothing until it is let go.
type held struct {
	terminal
	free chan struct{}
}

func (h *held) Write(p []byte) (int, error) {
	<-h.free
	return h.terminal.Write(p)
}

// Whoever writes does not wait for a reader that has stopped; what there was no room
// for is counted.
func TestAnOutletThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &held{free: make(chan struct{})}
		o := progress.NewOutlet(out)
		began := time.Now()
		for i := range 10_000 {
			if _, err := fmt.Fprintf(o, "%d\n", i); err != nil {
				t.Fatal(err)
			}
		}
		o.Close()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it took %s, want a second of patience, and two looks in the end", took)
		}
		close(out.free)
		synctest.Wait()
		if got := out.String(); !strings.HasPrefix(got, "0\n1\n2\n") {
			t.Errorf("wrote %.20q, want the first lines in their order", got)
		}
	})
}

// When somebody reads again, it is said how much was left out.
func TestAnOutletThatIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &held{free: make(chan struct{})}
		o := progress.NewOutlet(out)
		for range 5_000 {
			_, _ = o.Write([]byte("x\n"))
		}
		close(out.free)
		synctest.Wait()
		_, _ = o.Write([]byte("y\n"))
		_, _ = o.Write([]byte("z\n"))
		o.Close()
		taken := strings.Count(out.String(), "x\n")
		if want := fmt.Sprintf("y\n(%d lines were left out: nobody read them in time)\nz\n", 5_000-taken); !strings.HasSuffix(out.String(), want) {
			t.Errorf("after %d lines it ends with %q, want %q", taken, out.String()[2*taken:], want)
		}
	})
}

// A reader that has stopped, has read on and stops again is waited for again.
func TestAnOutletWhoseReaderStopsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &held{}
		o := progress.NewOutlet(out)
		for stop := range 2 {
			out.free = make(chan struct{})
			began := time.Now()
			for range 5_000 {
				_, _ = o.Write([]byte("x\n"))
			}
			if waited := time.Since(began); waited != time.Second {
				t.Errorf("stop %d was waited for %s, want a second", stop, waited)
			}
			close(out.free)
			synctest.Wait()
		}
		o.Close()
	})
}

// What comes last has room as soon as a slow reader has read enough; one that has
// stopped is not waited for.
func TestDrainingAnOutlet(t *testing.T) {
	const lines = 4_000
	for name, test := range map[string]struct {
		out         io.Writer
		least, most time.Duration
	}{
		"a slow reader":        {&slow{each: 5 * time.Millisecond}, 9 * time.Second, 10 * time.Second}, // for half of the lines
		"one that has stopped": {&held{}, 2 * time.Second, 2100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if h, ok := test.out.(*held); ok {
					h.free = make(chan struct{})
					defer close(h.free)
				}
				o := progress.NewOutlet(test.out)
				for range lines {
					_, _ = o.Write([]byte("x\n"))
				}
				began := time.Now()
				o.Drain()
				if took := time.Since(began); took < test.least || took > test.most {
					t.Errorf("it took %s, want from %s to %s", took, test.least, test.most)
				}
				began = time.Now()
				for range lines / 10 {
					_, _ = o.Write([]byte("y\n"))
				}
				if took := time.Since(began); name == "a slow reader" && took != 0 {
					t.Errorf("then a write waited for %s, want that there is room", took)
				}
				o.Close()
			})
		})
	}
}

// A reader that is slow, and reads, gets everything.
func TestAnOutletWaitsForASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &slow{each: time.Millisecond}
		o := progress.NewOutlet(out)
		for i := range 20_000 {
			if _, err := fmt.Fprintf(o, "%d\n", i); err != nil {
				t.Fatal(err)
			}
		}
		o.Close() // which waits as long as lines are taken
		if got := strings.Count(out.String(), "\n"); got != 20_000 {
			t.Errorf("%d lines were written, want all", got)
		}
	})
}

// A slow terminal takes that long for each line.
type slow struct {
	terminal
	each time.Duration
}

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(s.each)
	return s.terminal.Write(p)
}

func TestAnOutletWritesAllInOrder(t *testing.T) {
	out := &terminal{}
	o := progress.NewOutlet(out)
	var want strings.Builder
	for i := range 100 {
		line := fmt.Sprintf("%d\n", i)
		want.WriteString(line)
		buffer := []byte(line)
		if _, err := o.Write(buffer); err != nil {
			t.Fatal(err)
		}
		clear(buffer) // it is the writer's again
	}
	o.Close()
	o.Close()
	if got := out.String(); got != want.String() {
		t.Errorf("wrote %q", got)
	}
	if _, err := o.Write(nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write after the end: %v", err)
	}
}

// A patient outlet loses nothing until it is told that nobody will come.
func TestAPatientOutlet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &held{free: make(chan struct{})}
		stop := make(chan struct{})
		var told atomic.Int32
		o := progress.NewPatientOutlet(out, stop, func() { told.Add(1) })
		written := 0
		go func() {
			for range 10_000 {
				_, _ = o.Write([]byte("x\n"))
				written++
			}
		}()
		synctest.Wait()
		if before := written; before < 4096 || before > 4100 {
			t.Errorf("%d were taken, want as many as there is room for", before)
		}
		if told.Load() != 0 {
			t.Error("it said that it waits before it had")
		}
		time.Sleep(time.Hour)
		if told := told.Load(); told != 1 {
			t.Errorf("it said %d times that it waits, want once", told)
		}
		close(stop)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if written != 10_000 {
			t.Errorf("%d were taken after the stop, want all", written)
		}
		close(out.free)
		synctest.Wait()
		_, _ = o.Write([]byte("y\n")) // there is room again
		o.Close()
		if got := strings.Count(out.String(), "x\n"); got < 4096 || got > 4100 {
			t.Errorf("%d were written", got)
		}
		if got, want := strings.Trim(out.String(), "x\n"), "y"; got != want {
			t.Errorf("beside what it was given it wrote %q, want nothing: a machine reads it", got)
		}
	})
}

// A stream that is broken says so, once it is known.
func TestAnOutletOfABrokenStream(t *testing.T) {
	o := progress.NewOutlet(&brokenPipe{})
	if _, err := o.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	o.Close()
	if err := o.Err(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}
