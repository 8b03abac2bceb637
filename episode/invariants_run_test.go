package episode_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
)

// A record is all that is known of a program that has run. Nothing of it changes any
// more.
type record struct {
	program
	history string
	events  []event
	sends   []*send
	played  int // how many events there were when the episodes had ended
	settled int // how many before anybody closed what was left
	replies []episode.Reply
	rewards map[string][]float64
	calls   map[side][]episodetest.Call
	// attempts of each rollout of the program, in order.
	attempts map[string][]attempt

	full     bool     // as many episodes as admission lets in ran at once afterwards
	left     []string // sessions held when all episodes had ended
	unclosed int      // what the driver said was open after it closed what was left
	still    []string // sessions held then
	expired  int      // sessions held when their lives were over
}

// run runs a program and what comes after it: what was left is closed, as far as that goes;
// then all that went wrong ends, admission is filled, what was left is closed, and
// what is left of that expires.
func run(t *rapid.T, p program) record {
	dir, err := os.MkdirTemp("", "journal")
	mustWork(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	w, err := newWorld(p, dir)
	mustWork(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(3*eventually, func() { // also of what no context ends
		cancel()
		_ = w.healAll()
	}).Stop()
	r := record{program: p}
	r.replies = w.play(ctx)
	r.played = len(w.history.all())
	if ctx.Err() != nil {
		t.Fatalf("the episodes do not end\n\n%s\n%s", p, w.history)
	}

	w.driver.CloseLeft(ctx) // while things still go wrong
	mustWork(t, w.healAll())
	r.full = p.Concurrency == 0 || p.has(drains) || w.fills(ctx)
	var settled bool
	if r.left, settled = w.settle(); !settled {
		t.Fatalf("broken: %d sessions are open, and the servers have let go of all but %q\n\n%s\n%s", w.open(), r.left, p, w.history)
	}
	r.settled = len(w.history.all())
	r.unclosed, err = closeAllLeft(ctx, w)
	mustWork(t, err)
	r.still = w.held()
	w.hangUp()
	r.expired, err = w.expire(ctx, r.still)
	mustWork(t, err)

	mustWork(t, w.end())
	r.calls = map[side][]episodetest.Call{}
	for at, proxy := range w.proxies {
		r.calls[at] = proxy.Calls()
	}
	r.events, r.sends, r.history, r.rewards = w.history.all(), w.history.sends, w.history.String(), w.rewards
	r.attempts = r.attemptsByRollout()
	return r
}

func mustWork(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// closeAllLeft gives a short limit on closes more than one chance.
func closeAllLeft(ctx context.Context, w *world) (open int, err error) {
	for range 20 {
		if open, err = w.closeLeft(ctx); open == 0 || err != nil {
			break
		}
	}
	return open, err
}

// attemptsByRollout are those of the program, in order. What was sent after it is none
// of theirs.
func (r record) attemptsByRollout() map[string][]attempt {
	all := map[string][]attempt{}
	for i := range r.Episodes {
		all[rolloutName(i)] = nil
	}
	for _, s := range r.sends {
		of, ours := all[s.episode.RolloutID]
		if !ours || s.sentAt > r.played {
			continue
		}
		if len(of) == 0 || of[len(of)-1].id != s.episode {
			of = append(of, attempt{program: r.program, id: s.episode, on: map[episodetest.Route][]*send{}})
		}
		last := &of[len(of)-1]
		last.sends = append(last.sends, s)
		last.on[s.route] = append(last.on[s.route], s)
		all[s.episode.RolloutID] = of
	}
	return all
}

func rolloutName(i int) string { return fmt.Sprintf("rollout-%d", i) }

// each looks at the attempts one by one.
func (r record) each(look func(attempt) error) error {
	for i := range r.Episodes {
		for _, a := range r.attempts[rolloutName(i)] {
			if err := look(a); err != nil {
				return fmt.Errorf("%s: %w", a.id, err)
			}
		}
	}
	return nil
}

// usage is what a program must give back.
type usage struct{ goroutines, descriptors int }

func inUse(t *rapid.T) usage {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil && !os.IsNotExist(err) { // only Linux has it
		t.Fatal(err)
	}
	return usage{runtime.NumGoroutine(), len(entries)}
}

// await waits until no more is in use than before: what was closed may take a moment.
func (before usage) await(t *rapid.T, r record) {
	var now usage
	for end := time.Now().Add(eventually); time.Now().Before(end); time.Sleep(time.Millisecond) {
		now = inUse(t)
		if now.goroutines <= before.goroutines && now.descriptors <= before.descriptors {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Fatalf("broken: nothing is left: %+v are in use, %+v before it\n\n%s\n%s\n%s", now, before, r.program, r.history, stacks[:runtime.Stack(stacks, true)])
}

// coverage is what the programs came to, so that a person can see what was tested.
type coverage map[string]int

func (c coverage) add(r record) {
	for _, calls := range r.calls {
		for _, call := range calls {
			if call.Injected {
				c["fault "+string(call.Fault.Kind)]++
			}
		}
	}
	_ = r.each(func(a attempt) error {
		o := a.outlook()
		c[fmt.Sprintf("attempt %s result=%t timed out=%t terminal=%t %.20s", o.stage, o.result, o.timedOut, o.terminal, o.unsure)]++
		return nil
	})
	for _, e := range r.events {
		if e.what == intervened {
			c[e.note]++
		}
	}
	c["left"] += len(r.left)
	c["programs"]++
}

func (c coverage) log(t *testing.T) {
	var lines []string
	for what, times := range c {
		lines = append(lines, fmt.Sprintf("%6d %s", times, what))
	}
	slices.Sort(lines)
	t.Logf("\n%s", strings.Join(lines, "\n"))
}
