package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.com/turn/protocol"
	"example.com/turn/servers/internal/sessions"
)

type (
	table  = sessions.Table[string, string]
	config = sessions.Config[string, string]

	opening = sessions.Opening[string]
)

var (
	mine   = protocol.EpisodeID{RolloutID: "0-0"}
	theirs = protocol.EpisodeID{RolloutID: "0-0", Attempt: 1}
	bound  = sessions.Binding{Episode: mine, Seed: "task"}
	errBad = errors.New("no free GPU")
)

// built is a build that succeeds.
func built(state string) func(context.Context) (opening, error) {
	return func(context.Context) (opening, error) { return opening{State: state}, nil }
}

func seed(t *testing.T, table *table, id, state string) {
	t.Helper()
	if err := table.Seed(t.Context(), id, bound, built(state)); err != nil {
		t.Fatal(err)
	}
}

func by(episode protocol.EpisodeID) sessions.Closer { return sessions.Closer{Episode: episode} }

// stateOf is the state of an open session, or the error of using it.
func stateOf(table *table, id string) string {
	var state string
	err := table.Use(context.Background(), id, func(_ context.Context, s string) error { state = s; return nil })
	if err != nil {
		return err.Error()
	}
	return state
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantState(t *testing.T, table *table, id, want string) {
	t.Helper()
	if got := stateOf(table, id); got != want {
		t.Errorf("using %s: got %q, want %q", id, got, want)
	}
}

func TestARepeatedSeedFindsTheSession(t *testing.T) {
	table := sessions.NewTable(config{})
	seed(t, table, "a", "first")
	seed(t, table, "a", "second")
	wantState(t, table, "a", "first")
	if n := table.Len(); n != 1 {
		t.Errorf("%d sessions are open, want 1", n)
	}
}

func TestAnIDIsBoundToOneSeed(t *testing.T) {
	table := sessions.NewTable(config{})
	seed(t, table, "a", "first")
	for _, other := range []struct {
		name    string
		binding sessions.Binding
		want    error
	}{
		{"another episode", sessions.Binding{Episode: theirs, Seed: "task"}, sessions.ErrEpisode},
		{"another task", sessions.Binding{Episode: mine, Seed: "other"}, sessions.ErrSeed},
	} {
		err := table.Seed(t.Context(), "a", other.binding, built("second"))
		wantError(t, other.name, err, other.want)
	}
	wantState(t, table, "a", "first")
}

func TestASeedThatFailsBindsNothing(t *testing.T) {
	for name, fail := range map[string]func(context.Context) (opening, error){
		"an error": func(context.Context) (opening, error) { return opening{State: "half"}, errBad },
		"a panic":  func(context.Context) (opening, error) { panic("a bug") },
	} {
		t.Run(name, func(t *testing.T) {
			table := sessions.NewTable(config{})
			func() {
				defer func() { _ = recover() }()
				wantError(t, "the seed", table.Seed(t.Context(), "a", bound, fail), errBad)
			}()
			if n := table.Len(); n != 0 {
				t.Fatalf("%d sessions are open, want none", n)
			}
			other := sessions.Binding{Episode: theirs, Seed: "other"}
			if err := table.Seed(t.Context(), "a", other, built("second")); err != nil {
				t.Fatalf("the id is still bound: %v", err)
			}
			wantState(t, table, "a", "second")
		})
	}
}

func TestACloseFencesTheID(t *testing.T) {
	for _, test := range []struct {
		name   string
		seeded bool
		want   string // receipt
	}{
		{"of an open session", true, "receipt of state"},
		{"of an id that was never seeded", false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := newClock()
			table := sessions.NewTable(config{Clock: clock.Now, Release: giveReceipt})
			if test.seeded {
				seed(t, table, "a", "state")
			}
			for range 2 {
				receipt, err := table.Close(t.Context(), "a", by(mine))
				if err != nil || receipt != test.want {
					t.Fatalf("the close: got %q, %v, want %q", receipt, err, test.want)
				}
				clock.advance(sessions.DefaultWindow / 2)
			}
			clock.advance(-time.Nanosecond) // what is left of the first close's window
			wantState(t, table, "a", sessions.ErrGone.Error())
			wantError(t, "a late seed", table.Seed(t.Context(), "a", bound, built("late")), sessions.ErrClosed)
			clock.advance(time.Nanosecond)
			seed(t, table, "a", "new")
			wantState(t, table, "a", "new")
		})
	}
}

func giveReceipt(_ context.Context, _, state string) (string, error) {
	return "receipt of " + state, nil
}

func TestACloseNamesItsEpisode(t *testing.T) {
	table := sessions.NewTable(config{})
	seed(t, table, "a", "state")
	_, err := table.Close(t.Context(), "a", by(theirs))
	wantError(t, "of an open session", err, sessions.ErrEpisode)
	wantState(t, table, "a", "state")
	if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
		t.Fatal(err)
	}
	_, err = table.Close(t.Context(), "a", by(theirs))
	wantError(t, "of a closed session", err, sessions.ErrEpisode)
}

func TestConcurrentClosersReleaseOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var releases atomic.Int32
		goOn := make(chan struct{})
		table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) {
			<-goOn
			return fmt.Sprint("receipt ", releases.Add(1)), nil
		}})
		seed(t, table, "a", "state")
		receipts := make([]string, 10)
		var closers sync.WaitGroup
		for i := range receipts {
			closers.Go(func() { receipts[i], _ = table.Close(t.Context(), "a", by(mine)) })
		}
		synctest.Wait()
		close(goOn)
		closers.Wait()
		for _, receipt := range receipts {
			if receipt != "receipt 1" {
				t.Errorf("a closer got %q, want the first receipt", receipt)
			}
		}
		if n := releases.Load(); n != 1 {
			t.Errorf("the session was released %d times", n)
		}
	})
}

func TestAFailedReleaseKeepsTheSession(t *testing.T) {
	for name, fail := range map[string]func() (string, error){
		"an error": func() (string, error) { return "half a receipt", errBad },
		"a panic":  func() (string, error) { panic(errBad) },
	} {
		t.Run(name, func(t *testing.T) {
			release := fail
			table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) { return release() }})
			seed(t, table, "a", "state")
			if _, err := table.Close(t.Context(), "a", by(mine)); err == nil {
				t.Fatal("the close succeeded")
			}
			wantState(t, table, "a", "state")
			seed(t, table, "a", "second")
			wantState(t, table, "a", "state")
			release = func() (string, error) { return "receipt", nil }
			receipt, err := table.Close(t.Context(), "a", by(mine))
			if err != nil || receipt != "receipt" {
				t.Errorf("the second close: %q, %v", receipt, err)
			}
			if n := table.Len(); n != 0 {
				t.Errorf("%d sessions are open, want none", n)
			}
		})
	}
}

// A slow seed is overtaken by the close of its session, whose caller may be gone
// before the seed ends.
func TestASlowSeedDoesNotOutliveItsClose(t *testing.T) {
	for _, test := range []struct {
		name      string
		impatient bool // the closer goes away
		buildErr  error
		released  []string
	}{
		{name: "the closer waits", released: []string{"state"}},
		{name: "the closer goes away", impatient: true, released: []string{"state"}},
		{name: "the build fails", buildErr: errBad},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var released []string
				table := sessions.NewTable(config{Release: func(_ context.Context, _, state string) (string, error) {
					released = append(released, state)
					return "", nil
				}})
				goOn := make(chan struct{})
				var seedErr, closeErr error
				var calls sync.WaitGroup
				calls.Go(func() {
					seedErr = table.Seed(t.Context(), "a", bound, func(context.Context) (opening, error) {
						<-goOn
						return opening{State: "state"}, test.buildErr
					})
				})
				synctest.Wait()
				reason := errors.New("the caller went away")
				ctx, leave := context.WithCancelCause(t.Context())
				defer leave(nil)
				calls.Go(func() { _, closeErr = table.Close(ctx, "a", by(mine)) })
				synctest.Wait()
				if test.impatient {
					leave(reason)
					synctest.Wait()
					wantError(t, "the closer that left", closeErr, reason)
				}
				close(goOn)
				calls.Wait()
				synctest.Wait()
				if test.buildErr != nil {
					wantError(t, "the seed", seedErr, test.buildErr)
				} else {
					wantError(t, "the seed", seedErr, sessions.ErrClosed)
				}
				if !test.impatient && closeErr != nil {
					t.Errorf("the close: %v", closeErr)
				}
				if diff := cmp.Diff(test.released, released); diff != "" {
					t.Errorf("released (-want +got):\n%s", diff)
				}
				wantError(t, "a seed after it", table.Seed(t.Context(), "a", bound, built("late")), sessions.ErrClosed)
				if n := table.Len(); n != 0 {
					t.Errorf("%d sessions are open, want none", n)
				}
			})
		})
	}
}

func TestACloseForAnotherEpisodeWaitsForWhatTheSeedLeaves(t *testing.T) {
	for _, test := range []struct {
		name     string
		buildErr error
		want     error
		after    string
	}{
		{"a session", nil, sessions.ErrEpisode, "state"},
		{"nothing", errBad, nil, sessions.ErrGone.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := sessions.NewTable(config{})
				goOn := make(chan struct{})
				go func() {
					_ = table.Seed(t.Context(), "a", bound, func(context.Context) (opening, error) {
						<-goOn
						return opening{State: "state"}, test.buildErr
					})
				}()
				synctest.Wait()
				var closeErr error
				answered := false
				go func() {
					_, closeErr = table.Close(t.Context(), "a", by(theirs))
					answered = true
				}()
				synctest.Wait()
				if answered {
					t.Fatalf("the close was answered with %v while the seed ran", closeErr)
				}
				close(goOn)
				synctest.Wait()
				wantError(t, "the close", closeErr, test.want)
				wantState(t, table, "a", test.after)
			})
		})
	}
}

func TestNoCallStartsOnceACloseIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := sessions.NewTable(config{})
		seed(t, table, "a", "state")
		running, goOn := make(chan struct{}), make(chan struct{})
		var closed, started bool
		var waiting error
		go func() {
			_ = table.Use(t.Context(), "a", func(_ context.Context, _ string) error {
				close(running)
				<-goOn
				return nil
			})
		}()
		<-running
		go func() {
			waiting = table.Use(t.Context(), "a", func(_ context.Context, _ string) error { started = true; return nil })
		}()
		synctest.Wait()
		go func() {
			_, _ = table.Close(t.Context(), "a", by(mine))
			closed = true
		}()
		synctest.Wait()
		if closed {
			t.Fatal("the session was released beside a call")
		}
		close(goOn)
		synctest.Wait()
		if started || !closed {
			t.Errorf("the waiting call started: %v, the session closed: %v", started, closed)
		}
		wantError(t, "the waiting call", waiting, sessions.ErrGone)
	})
}

// A seed that is repeated while the close of its session waits for a call comes
// before the release in the session's queue. It must not find the session: whoever
// sent it would go on with one that is about to be gone.
func TestARepeatedSeedDoesNotFindASessionThatIsBeingClosed(t *testing.T) {
	for _, test := range []struct {
		name       string
		binding    sessions.Binding
		closeFirst bool // the close is noted before the seed comes
		releaseErr error
		want       error
		after      string
	}{
		{"the seed waits already", bound, false, nil, sessions.ErrClosed, sessions.ErrGone.Error()},
		{"the close was first", bound, true, nil, sessions.ErrClosed, sessions.ErrGone.Error()},
		{"of another task", sessions.Binding{Episode: mine, Seed: "other"}, false, nil, sessions.ErrClosed, sessions.ErrGone.Error()},
		{"of another episode", sessions.Binding{Episode: theirs, Seed: "task"}, false, nil, sessions.ErrEpisode, sessions.ErrGone.Error()},
		{"the release fails after it", bound, false, errBad, sessions.ErrClosed, "first"},
		{"the release fails before it", bound, true, errBad, nil, "first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) { return "", test.releaseErr }})
				seed(t, table, "a", "first")
				running, goOn := make(chan struct{}), make(chan struct{})
				var calls sync.WaitGroup
				calls.Go(func() {
					_ = table.Use(t.Context(), "a", func(_ context.Context, _ string) error {
						close(running)
						<-goOn
						return nil
					})
				})
				<-running
				var seedErr, closeErr error
				steps := []func(){
					func() { seedErr = table.Seed(t.Context(), "a", test.binding, built("second")) },
					func() { _, closeErr = table.Close(t.Context(), "a", by(mine)) },
				}
				if test.closeFirst {
					slices.Reverse(steps)
				}
				for _, step := range steps {
					calls.Go(step)
					synctest.Wait()
				}
				close(goOn)
				calls.Wait()
				wantError(t, "the repeated seed", seedErr, test.want)
				wantError(t, "the close", closeErr, test.releaseErr)
				wantState(t, table, "a", test.after)
			})
		})
	}
}

func TestACloseInterruptsTheCallThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		table := sessions.NewTable(config{Interrupt: func(string) { close(stop) }})
		seed(t, table, "a", "state")
		go func() {
			_ = table.Use(t.Context(), "a", func(_ context.Context, _ string) error {
				<-stop // never, unless it is interrupted: the bubble would report a deadlock
				return nil
			})
		}()
		synctest.Wait()
		if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
			t.Error(err)
		}
	})
}

func TestSessionsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := sessions.NewTable(config{})
		goOn := make(chan struct{})
		go func() {
			_ = table.Seed(t.Context(), "slow", bound, func(context.Context) (opening, error) { <-goOn; return opening{}, nil })
		}()
		synctest.Wait()
		seed(t, table, "a", "state")
		wantState(t, table, "a", "state")
		if _, err := table.Close(t.Context(), "a", by(mine)); err != nil {
			t.Error(err)
		}
		close(goOn)
	})
}

func TestShutdownReleasesWhatIsOpen(t *testing.T) {
	var mu sync.Mutex
	released := map[string]bool{}
	table := sessions.NewTable(config{Release: func(_ context.Context, id, _ string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		released[id] = true
		if id == "bad" {
			return "", errBad
		}
		return "", nil
	}})
	for _, id := range []string{"a", "b", "bad"} {
		seed(t, table, id, "state")
	}
	wantError(t, "the shutdown", table.Shutdown(t.Context()), errBad)
	if diff := cmp.Diff(map[string]bool{"a": true, "b": true, "bad": true}, released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	wantError(t, "a seed after it", table.Seed(t.Context(), "c", bound, built("late")), sessions.ErrShutdown)
	if n := table.Len(); n != 1 {
		t.Errorf("%d sessions are open, want the one whose release failed", n)
	}
}

func TestShutdownEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cancelled := false
		table := sessions.NewTable(config{Release: func(ctx context.Context, _, _ string) (string, error) {
			<-ctx.Done()
			cancelled = true
			return "", context.Cause(ctx)
		}})
		seed(t, table, "a", "state")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantError(t, "the shutdown", table.Shutdown(ctx), context.DeadlineExceeded)
		synctest.Wait()
		if !cancelled {
			t.Error("the release still runs")
		}
	})
}

// A shutdown that has run out of time leaves a session unreleased rather than
// release it beside a call.
func TestAShutdownReleasesNothingBesideACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, released := false, false
		table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) {
			released = true
			return "", nil
		}})
		seed(t, table, "a", "state")
		goOn := make(chan struct{})
		go func() {
			_ = table.Use(t.Context(), "a", func(context.Context, string) error { running = true; <-goOn; return nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantError(t, "the shutdown", table.Shutdown(ctx), context.DeadlineExceeded)
		synctest.Wait()
		if !running || released {
			t.Errorf("the call runs: %v, the session is released: %v", running, released)
		}
		close(goOn)
	})
}

// A shutdown does not wait for a call that may take hours, and releases its session
// when the call has returned.
func TestAShutdownCutsTheCallThatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call, atRelease := "not begun", ""
		table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) { atRelease = call; return "", nil }})
		seed(t, table, "a", "state")
		var callErr error
		go func() {
			callErr = table.Use(t.Context(), "a", func(ctx context.Context, _ string) error {
				call = "runs"
				<-ctx.Done()
				time.Sleep(time.Second) // it takes a while to return
				call = "ended"
				return ctx.Err()
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := table.Shutdown(ctx); err != nil {
			t.Errorf("the shutdown: %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v, want the second that the call needs", took)
		}
		synctest.Wait()
		wantError(t, "the call", callErr, sessions.ErrShutdown)
		if atRelease != "ended" || table.Len() != 0 {
			t.Errorf("at the release the call had %s; %d sessions are open", atRelease, table.Len())
		}
	})
}

// Whoever asks for the receipt of a session that is being closed waits for it.
func TestAReceiptIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) { <-goOn; return "receipt", nil }})
		seed(t, table, "a", "state")
		if err := table.Use(t.Context(), "a", func(context.Context, string) error { table.End("a"); return nil }); err != nil {
			t.Fatal(err)
		}
		var receipt string
		go func() { receipt, _ = table.Fenced(t.Context(), "a") }()
		synctest.Wait()
		if receipt != "" {
			t.Errorf("the receipt is there before the release: %q", receipt)
		}
		close(goOn)
		synctest.Wait()
		if receipt != "receipt" {
			t.Errorf("got %q", receipt)
		}
	})
}

// What a table does, call by call, is what a plain account of the contract says.
func TestATableAgreesWithTheContract(t *testing.T) {
	const window, lifetime, idle = time.Minute, 90 * time.Second, 40 * time.Second
	type account struct {
		state        string // "": not open
		binding      sessions.Binding
		seeded, used time.Time
		fenced       time.Time // zero: not fenced
		episode      protocol.EpisodeID
		hasExpired   bool
	}
	secrets := []string{"", "mine", "theirs"}
	rapid.Check(t, func(t *rapid.T) {
		clock := newClock()
		table := sessions.NewTable(config{Window: window, Lifetime: lifetime, Idle: idle, Clock: clock.Now})
		accounts := map[string]*account{"a": {}, "b": {}}
		settle := func() { // what time has done
			for _, account := range accounts {
				if account.state != "" && (clock.now.Sub(account.seeded) >= lifetime || clock.now.Sub(account.used) >= idle) {
					account.state, account.fenced, account.episode, account.hasExpired = "", clock.now, account.binding.Episode, true
				}
				if !account.fenced.IsZero() && clock.now.Sub(account.fenced) >= window {
					account.fenced, account.hasExpired = time.Time{}, false
				}
			}
		}
		draw := func(t *rapid.T) (string, *account, sessions.Binding) {
			settle()
			id := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "id")
			return id, accounts[id], sessions.Binding{
				Episode: rapid.SampledFrom([]protocol.EpisodeID{mine, theirs}).Draw(t, "episode"),
				Seed:    rapid.SampledFrom([]string{"x", "y"}).Draw(t, "seed"),
				Token:   sessions.NewCloseToken(rapid.SampledFrom(secrets).Draw(t, "token")),
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"seed": func(t *rapid.T) {
				id, account, binding := draw(t)
				fails := rapid.Bool().Draw(t, "fails")
				err := table.Seed(context.Background(), id, binding, func(context.Context) (opening, error) {
					if fails {
						return opening{}, errBad
					}
					return opening{State: binding.Seed}, nil
				})
				want := error(nil)
				switch {
				case !account.fenced.IsZero():
					want = sessions.ErrClosed
				case account.state != "" && account.binding.Episode != binding.Episode:
					want = sessions.ErrEpisode
				case account.state != "" && account.binding != binding:
					want = sessions.ErrSeed
				case account.state != "":
				case fails:
					want = errBad
				default:
					account.state, account.binding = binding.Seed, binding
					account.seeded, account.used = clock.now, clock.now
				}
				if !errors.Is(err, want) {
					t.Fatalf("seed: got %v, want %v", err, want)
				}
			},
			"close": func(t *rapid.T) {
				id, account, binding := draw(t)
				closer := sessions.Closer{
					Episode: binding.Episode,
					Cookie:  rapid.Bool().Draw(t, "cookie"),
					Token:   rapid.SampledFrom(secrets).Draw(t, "shown"),
				}
				_, err := table.Close(context.Background(), id, closer)
				want := error(nil)
				switch {
				case !account.fenced.IsZero():
					if account.episode != closer.Episode {
						want = sessions.ErrEpisode
					}
				case account.state != "" && account.binding.Episode != closer.Episode:
					want = sessions.ErrEpisode
				case account.state != "" && account.binding.Token.Required() && !closer.Cookie && account.binding.Token != sessions.NewCloseToken(closer.Token):
					want = sessions.ErrToken
				default:
					account.state, account.fenced, account.episode = "", clock.now, closer.Episode
				}
				if !errors.Is(err, want) {
					t.Fatalf("close: got %v, want %v", err, want)
				}
			},
			"use": func(t *rapid.T) {
				id, account, _ := draw(t)
				want := account.state
				switch {
				case account.hasExpired:
					want = sessions.ErrExpired.Error()
				case want == "":
					want = sessions.ErrGone.Error()
				default:
					account.used = clock.now
				}
				if got := stateOf(table, id); got != want {
					t.Fatalf("use: got %q, want %q", got, want)
				}
			},
			"move to another table": func(t *rapid.T) {
				settle()
				for _, account := range accounts {
					account.fenced, account.hasExpired = time.Time{}, false // they stay behind
					account.used = clock.now                                // it is known to those who restore it alone
				}
				var all []sessions.Held[string]
				err := table.Each(context.Background(), func(held sessions.Held[string]) error {
					all = append(all, held)
					return nil
				})
				old := table
				table = sessions.NewTable(config{Window: window, Lifetime: lifetime, Idle: idle, Clock: clock.Now})
				if err := errors.Join(err, table.Restore(all), old.Shutdown(context.Background())); err != nil {
					t.Fatal(err)
				}
			},
			"wait": func(t *rapid.T) {
				clock.advance(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				settle()
				table.Sweep(context.Background())
				open := 0
				for _, account := range accounts {
					if account.state != "" {
						open++
					}
				}
				if n := table.Len(); n != open {
					t.Fatalf("%d sessions are open, want %d", n, open)
				}
			},
		})
	})
}

// All calls at once on few ids: for the race detector, and for a session that
// is built and never released.
func TestEverySessionBuiltIsReleasedOnce(t *testing.T) {
	var builds, releases atomic.Int64
	table := sessions.NewTable(config{
		Window:  time.Nanosecond, // ids come back at once
		Release: func(context.Context, string, string) (string, error) { releases.Add(1); return "", nil },
	})
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range 500 {
				id := fmt.Sprint(rand.N(3))
				switch rand.N(3) {
				case 0:
					_ = table.Seed(t.Context(), id, bound, func(context.Context) (opening, error) {
						builds.Add(1)
						return opening{State: "s"}, nil
					})
				case 1:
					_ = table.Use(t.Context(), id, func(_ context.Context, _ string) error { return nil })
				case 2:
					_, _ = table.Close(t.Context(), id, by(mine))
				}
			}
		})
	}
	callers.Wait()
	if err := table.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if builds.Load() != releases.Load() || table.Len() != 0 {
		t.Errorf("%d sessions were built and %d released, %d are open", builds.Load(), releases.Load(), table.Len())
	}
}
