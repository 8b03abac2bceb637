package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
	"example.com/turn/servers/internal/sessions"
)

func TestAnExpiredSessionIsReleasedAndFenced(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(t *testing.T, table *table) // makes the table see that it has expired
	}{
		{"by the next use", func(t *testing.T, table *table) { wantState(t, table, "a", sessions.ErrExpired.Error()) }},
		{"by a repeated seed", func(t *testing.T, table *table) {
			wantError(t, "the seed", table.Seed(t.Context(), "a", bound, built("second")), sessions.ErrClosed)
		}},
		{"by a close", func(t *testing.T, table *table) {
			if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
				t.Error(err)
			}
		}},
		{"by a sweep", func(t *testing.T, table *table) { table.Sweep(t.Context()) }},
		{"by itself", func(*testing.T, *table) { time.Sleep(sessions.DefaultSweepEvery) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var released []string
				table := sessions.NewTable(config{Lifetime: time.Hour, Release: func(_ context.Context, _, state string) (string, error) {
					released = append(released, state)
					return "", nil
				}})
				seed(t, table, "a", "state")
				time.Sleep(time.Hour - time.Nanosecond)
				wantState(t, table, "a", "state")
				time.Sleep(time.Nanosecond)
				test.end(t, table)
				synctest.Wait()
				if diff := cmp.Diff([]string{"state"}, released); diff != "" || table.Len() != 0 {
					t.Errorf("%d sessions are open; released (-want +got):\n%s", table.Len(), diff)
				}
				wantState(t, table, "a", sessions.ErrExpired.Error())
				wantError(t, "a seed after it", table.Seed(t.Context(), "a", bound, built("late")), sessions.ErrClosed)
				if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
					t.Errorf("the close after it: %v", err)
				}
				time.Sleep(sessions.DefaultWindow)
				wantState(t, table, "a", sessions.ErrGone.Error())
			})
		})
	}
}

func TestALifetimeOfItsOwnGoesBeforeTheTables(t *testing.T) {
	for _, own := range []time.Duration{time.Minute, 2 * time.Hour} {
		clock := newClock()
		table := sessions.NewTable(config{Clock: clock.Now, Lifetime: time.Hour})
		if err := table.Seed(t.Context(), "a", bound, func(context.Context) (opening, error) {
			return opening{State: "state", Lifetime: own}, nil
		}); err != nil {
			t.Fatal(err)
		}
		clock.advance(own - time.Nanosecond)
		wantState(t, table, "a", "state")
		clock.advance(time.Nanosecond)
		wantState(t, table, "a", sessions.ErrExpired.Error())
	}
}

func TestASessionInUseDoesNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := sessions.NewTable(config{Idle: time.Minute, SweepEvery: time.Second})
		seed(t, table, "a", "state")
		for range 3 { // each call is long, and each pause short
			err := table.Use(t.Context(), "a", func(ctx context.Context, _ string) error {
				time.Sleep(time.Hour)
				return context.Cause(ctx)
			})
			if err != nil {
				t.Fatalf("the call: %v", err)
			}
			time.Sleep(time.Minute - time.Nanosecond)
		}
		wantState(t, table, "a", "state")
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if n := table.Len(); n != 0 {
			t.Errorf("%d sessions are open a minute after the last call", n)
		}
		wantState(t, table, "a", sessions.ErrExpired.Error())
	})
}

// The end of a session's lifetime does not wait for a call that may never end,
// and its release does not run beside one.
func TestAnExpiryCutsTheCallThatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var atRelease string
		call := "not begun"
		table := sessions.NewTable(config{Lifetime: time.Minute, Idle: time.Second, SweepEvery: time.Second,
			Release: func(context.Context, string, string) (string, error) { atRelease = call; return "", nil }})
		seed(t, table, "a", "state")
		began := time.Now()
		err := table.Use(t.Context(), "a", func(ctx context.Context, _ string) error {
			call = "runs"
			defer func() { call = "ended" }()
			<-ctx.Done()
			wantState(t, table, "b", sessions.ErrGone.Error()) // others go on
			return fmt.Errorf("cut: %w", ctx.Err())
		})
		wantError(t, "the call", err, sessions.ErrExpired)
		if took := time.Since(began); took > time.Minute+time.Second {
			t.Errorf("it was cut after %v, want a minute and at most a second more", took)
		}
		synctest.Wait()
		if atRelease != "ended" || table.Len() != 0 {
			t.Errorf("at the release the call had %s; %d sessions are open", atRelease, table.Len())
		}
	})
}

// A close waits for the call that is under way, which may never end: it is still cut
// at the end of the session's lifetime.
func TestAnExpiryCutsTheCallThatACloseWaitsFor(t *testing.T) {
	for name, limits := range map[string]config{
		"without an idle time": {Lifetime: time.Minute},
		"with an idle time":    {Lifetime: time.Minute, Idle: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits.SweepEvery = time.Second
				table := sessions.NewTable(limits)
				seed(t, table, "a", "state")
				began := time.Now()
				var callErr error
				go func() {
					callErr = table.Use(t.Context(), "a", func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
				}()
				synctest.Wait()
				if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				wantError(t, "the call", callErr, sessions.ErrExpired)
				if took := time.Since(began); took > time.Minute+time.Second {
					t.Errorf("it was cut after %v, want a minute and at most a second more", took)
				}
				wantState(t, table, "a", sessions.ErrGone.Error()) // it was closed, and did not expire
			})
		})
	}
}

// Whoever asks for a session whose time is over does not wait for the sweep to cut
// the call that is under way.
func TestTheNextRequestCutsTheCallOfAnExpiredSession(t *testing.T) {
	for name, request := range map[string]func(t *testing.T, table *table) error{
		"a use": func(t *testing.T, table *table) error {
			return table.Use(t.Context(), "a", func(context.Context, string) error { return nil })
		},
		"a seed": func(t *testing.T, table *table) error {
			return table.Seed(t.Context(), "a", bound, built("second"))
		},
		"a close": func(t *testing.T, table *table) error {
			_, err := table.Close(t.Context(), "a", by(mine))
			return err
		},
		"a visit": func(t *testing.T, table *table) error {
			return table.Each(t.Context(), func(sessions.Held[string]) error { return errBad })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := sessions.NewTable(config{Lifetime: time.Minute, SweepEvery: 24 * time.Hour})
				seed(t, table, "a", "state")
				var callErr error
				go func() {
					callErr = table.Use(t.Context(), "a", func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
				}()
				synctest.Wait()
				time.Sleep(time.Minute)
				began := time.Now()
				err := request(t, table)
				synctest.Wait()
				wantError(t, "the call", callErr, sessions.ErrExpired)
				if waited := time.Since(began); waited != 0 {
					t.Errorf("the request waited for %v and got %v", waited, err)
				}
				if err := table.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The call that others wait for may go on when it is cut, and nothing else have
// looked at the session when it has ended.
func TestASessionThatExpiredWhileOthersWaitedIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := sessions.NewTable(config{Lifetime: time.Minute, SweepEvery: 24 * time.Hour})
		for _, id := range []string{"seeded", "used"} {
			seed(t, table, id, "state")
		}
		goOn := make(chan struct{})
		for _, id := range []string{"seeded", "used"} {
			go func() {
				_ = table.Use(t.Context(), id, func(context.Context, string) error { <-goOn; return nil })
			}()
		}
		synctest.Wait()
		var seedErr error
		var state string
		go func() { seedErr = table.Seed(t.Context(), "seeded", bound, built("second")) }()
		go func() { state = stateOf(table, "used") }()
		synctest.Wait()
		time.Sleep(time.Minute)
		close(goOn)
		synctest.Wait()
		wantError(t, "the seed", seedErr, sessions.ErrClosed)
		if want := sessions.ErrExpired.Error(); state != want {
			t.Errorf("the use got %q, want %q", state, want)
		}
		if err := table.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestARenewedSessionLivesAnew(t *testing.T) {
	for name, lifetime := range map[string]time.Duration{"that had a lifetime": 45 * time.Second, "that had none": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := sessions.NewTable(config{Lifetime: lifetime, SweepEvery: time.Second})
				seed(t, table, "a", "state")
				time.Sleep(30 * time.Second)
				_ = table.Use(t.Context(), "a", func(context.Context, string) error {
					if !table.Renew("a", time.Minute) {
						t.Error("it says that it was not renewed")
					}
					return nil
				})
				time.Sleep(time.Minute - time.Nanosecond)
				wantState(t, table, "a", "state")
				time.Sleep(2 * time.Second)
				if n := table.Len(); n != 0 {
					t.Errorf("%d sessions are open after its new end", n)
				}
			})
		})
	}
}

// A session whose expiry has begun is not served again, though its release fails.
func TestASessionIsNotRenewedOnceItHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := errBad
		table := sessions.NewTable(config{Lifetime: time.Minute, SweepEvery: time.Second,
			Release: func(context.Context, string, string) (string, error) { return "", err }})
		seed(t, table, "a", "state")
		_ = table.Use(t.Context(), "a", func(ctx context.Context, _ string) error {
			<-ctx.Done()
			if table.Renew("a", time.Hour) {
				t.Error("it says that it was renewed")
			}
			return nil
		})
		synctest.Wait()
		wantState(t, table, "a", sessions.ErrExpired.Error())
		synctest.Wait()
		err = nil
		if err := table.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAnExpiredSessionWhoseReleaseFailsIsReleasedLater(t *testing.T) {
	for name, limits := range map[string]config{
		"by its end":  {Lifetime: time.Minute},
		"by idleness": {Idle: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				limits.Release = func(context.Context, string, string) (string, error) {
					if tries++; tries < 3 {
						return "", errBad
					}
					return "", nil
				}
				limits.SweepEvery = 7 * time.Second // none comes at the minute, beside the call
				table := sessions.NewTable(limits)
				seed(t, table, "a", "state")
				time.Sleep(time.Minute)
				wantState(t, table, "a", sessions.ErrExpired.Error())
				synctest.Wait()
				if tries != 1 || table.Len() != 1 {
					t.Fatalf("after %d tries %d sessions are open, want 1 and 1", tries, table.Len())
				}
				time.Sleep(3 * limits.SweepEvery)
				synctest.Wait()
				if tries != 3 || table.Len() != 0 {
					t.Errorf("after %d tries %d sessions are open, want 3 and none", tries, table.Len())
				}
				wantState(t, table, "a", sessions.ErrExpired.Error())
			})
		})
	}
}

// A release that hangs, or that waits for a call that hangs, holds up no other
// session's.
func TestAReleaseThatHangsDoesNotEndTheSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var released []string
		table := sessions.NewTable(config{Lifetime: time.Hour, Release: func(_ context.Context, id, _ string) (string, error) {
			if id == "hangs" {
				<-goOn
			}
			released = append(released, id)
			return "", nil
		}})
		seed(t, table, "hangs", "state")
		time.Sleep(time.Minute)
		seed(t, table, "a", "state")
		time.Sleep(time.Hour + sessions.DefaultSweepEvery)
		synctest.Wait()
		if diff := cmp.Diff([]string{"a"}, released); diff != "" {
			t.Errorf("released (-want +got):\n%s", diff)
		}
		close(goOn)
		if err := table.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What is kept of a closed session goes with its window, though nobody asks for
// anything any more and no session is open.
func TestAFenceGoesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept weak.Pointer[[1 << 10]byte]
		table := sessions.NewTable(sessions.Config[string, *[1 << 10]byte]{
			Release: func(context.Context, string, string) (*[1 << 10]byte, error) {
				receipt := new([1 << 10]byte)
				kept = weak.Make(receipt)
				return receipt, nil
			},
		})
		if err := table.Seed(t.Context(), "a", bound, built("state")); err != nil {
			t.Fatal(err)
		}
		if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sessions.DefaultWindow + 2*sessions.DefaultSweepEvery)
		synctest.Wait()
		runtime.GC()
		if kept.Value() != nil {
			t.Error("the receipt is kept")
		}
		if err := table.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// However many calls ignore that they are cut and releases hang, a session whose time
// is over is fenced off, its call is cut, and who asks for its close gets it.
func TestManyThatHangKeepNoOtherFromExpiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		table := sessions.NewTable(config{Lifetime: time.Minute, Release: func(_ context.Context, id, _ string) (string, error) {
			if id != "good" {
				<-goOn
			}
			return "", nil
		}})
		openMany(t, table, 100) // more than are released at once
		for i := range 50 {     // and calls of some are deaf
			go func() {
				_ = table.Use(t.Context(), strconv.Itoa(i), func(context.Context, string) error { <-goOn; return nil })
			}()
		}
		synctest.Wait()
		time.Sleep(30 * time.Second)
		seed(t, table, "good", "state")
		var callErr error
		go func() {
			callErr = table.Use(t.Context(), "good", func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
		}()
		time.Sleep(time.Minute + 2*sessions.DefaultSweepEvery)
		synctest.Wait()
		wantError(t, "the call", callErr, sessions.ErrExpired)
		wantState(t, table, "good", sessions.ErrExpired.Error())
		if _, err := table.Close(t.Context(), "good", by(mine)); err != nil {
			t.Errorf("the close: %v", err)
		}
		if n := table.Len(); n != 100 {
			t.Errorf("%d sessions are open, want the 100 that hang", n)
		}
		close(goOn)
		synctest.Wait()
		if n := table.Len(); n != 0 {
			t.Errorf("%d sessions are open when nothing hangs any more", n)
		}
		if err := table.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestASweepEndsWithItsContextThoughNoReleaseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		table := sessions.NewTable(config{Lifetime: time.Minute, SweepEvery: time.Hour, Release: func(context.Context, string, string) (string, error) {
			<-goOn
			return "", nil
		}})
		openMany(t, table, 100) // more than are released at once
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		table.Sweep(ctx)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %v, want the minute that it had", took)
		}
		close(goOn)
		if err := table.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestSweepsEndWithTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		table := sessions.NewTable(config{Lifetime: time.Minute, Release: func(ctx context.Context, _, _ string) (string, error) {
			close(hang)
			<-ctx.Done()
			return "", context.Cause(ctx)
		}})
		seed(t, table, "a", "state")
		<-hang // a sweep waits for the release
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := table.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the shutdown: %v", err)
		}
	})
}

// testFull is the environment variable that asks for tests of many sessions at
// their full size.
const testFull = "TURN_TEST_FULL"

// many is a number of sessions, or a part of it where the full size is not asked
// for.
func many(n int) int {
	if os.Getenv(testFull) == "" {
		return n / 20
	}
	return n
}

func openMany(t *testing.T, table *table, n int) {
	t.Helper()
	for i := range n {
		seed(t, table, strconv.Itoa(i), "state")
	}
}

// While 100,000 sessions expire at once, and their releases take their time, a
// request of another session waits for none of it.
func TestASweepDoesNotStallRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := many(100_000)
		var now, most atomic.Int64
		table := sessions.NewTable(config{Lifetime: time.Hour, SweepEvery: 30 * time.Hour, Release: func(context.Context, string, string) (string, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second) // a provider that takes its time
			return "", nil
		}})
		openMany(t, table, n)
		time.Sleep(30 * time.Minute)
		seed(t, table, "other", "theirs")
		time.Sleep(30 * time.Minute)
		var sweep sync.WaitGroup
		sweep.Go(func() { table.Sweep(t.Context()) })
		for range 10 {
			time.Sleep(5 * time.Second)
			began := time.Now()
			wantState(t, table, "other", "theirs")
			seed(t, table, fmt.Sprint("new", began), "new")
			if waited := time.Since(began); waited != 0 {
				t.Fatalf("a request waited for %v", waited)
			}
			if left := table.Len(); left < 100 {
				t.Fatalf("only %d sessions are left: the sweep is over", left)
			}
		}
		sweep.Wait()
		if left := table.Len(); left != 11 {
			t.Errorf("%d sessions are left, want the other and the 10 new ones", left)
		}
		if most.Load() > 64 {
			t.Errorf("%d were released at once", most.Load())
		}
	})
}

// A sweep that finds 100,000 sessions in use since their deadline, or that many
// fences to be dropped, holds the table for one of them at a time.
func TestASweepLetsOthersIn(t *testing.T) {
	clock := newClock()
	var mu sync.Mutex
	table := sessions.NewTable(config{Idle: time.Minute, SweepEvery: time.Hour, Clock: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return clock.now
	}})
	n := many(100_000)
	openMany(t, table, n)
	for i := range n {
		if _, err := table.Close(t.Context(), fmt.Sprint("closed", i), by(mine)); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	clock.advance(40 * time.Second)
	mu.Unlock()
	for i := range n {
		wantState(t, table, strconv.Itoa(i), "state")
	}
	mu.Lock()
	clock.advance(30 * time.Second)
	mu.Unlock()
	fenced, steps := table.FencesHeld(), 0
	for more := true; more; steps++ {
		more = table.SweepOne()
		if dropped := fenced - table.FencesHeld(); dropped > 128 {
			t.Fatalf("step %d dropped %d fences", steps, dropped)
		}
		fenced = table.FencesHeld()
	}
	if steps < n {
		t.Errorf("the sweep held the table %d times for %d sessions", steps, n)
	}
	if left := table.Len(); left != n {
		t.Errorf("%d sessions are left of %d that are in use", left, n)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestAMillionSessionsLeaveMemoryWhereItWas(t *testing.T) {
	for _, test := range []struct {
		name   string
		atOnce int // how many are open at once
	}{
		{"one after another", 1},
		{"a hundred thousand at once", many(100_000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := newClock()
			table := sessions.NewTable(config{Clock: clock.Now, Lifetime: time.Hour, Idle: time.Minute, SweepEvery: time.Hour})
			n := many(1_000_000)
			before := heap()
			for done := 0; done < n; done += test.atOnce {
				ids := make([]string, test.atOnce)
				for i := range ids {
					ids[i] = protocol.NewResourcesSessionID()
					seed(t, table, ids[i], "state")
				}
				for _, id := range ids {
					if _, err := table.Close(t.Context(), id, by(mine)); err != nil {
						t.Fatal(err)
					}
				}
				clock.advance(sessions.DefaultWindow / 100)
			}
			clock.advance(sessions.DefaultWindow)
			table.Sweep(t.Context())
			after := heap()
			if grown := int64(after) - int64(before); grown > 1<<20 {
				t.Errorf("%d bytes are held after %d sessions", grown, n)
			}
			if err := table.Shutdown(t.Context()); err != nil { // keeps the table until here
				t.Error(err)
			}
		})
	}
}
