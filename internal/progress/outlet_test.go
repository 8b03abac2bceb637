package progress_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
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

// A reader that is slow, and reads, gets everything.
func TestAnOutletWaitsForASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &slow{}
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

// A slow terminal takes a line each millisecond.
type slow struct{ terminal }

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
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
		told := 0
		o := progress.NewPatientOutlet(out, stop, func() { told++ })
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
		if told != 0 {
			t.Error("it said that it waits before it had")
		}
		time.Sleep(time.Hour)
		if told != 1 {
			t.Errorf("it said %d times that it waits, want once", told)
		}
		close(stop)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if written != 10_000 {
			t.Errorf("%d were taken after the stop, want all", written)
		}
		close(out.free)
		o.Close()
		if got := strings.Count(out.String(), "x\n"); got < 4096 || got > 4100 {
			t.Errorf("%d were written", got)
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
