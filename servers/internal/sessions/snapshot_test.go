package sessions_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/internal/sessions"
)

// idsOf are the ids that Each visits.
func idsOf(t *testing.T, table *table) []string {
	t.Helper()
	ids := []string{}
	err := table.Each(t.Context(), func(held sessions.Held[string]) error {
		ids = append(ids, held.ID)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return ids
}

func TestASessionIsVisitedBetweenItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := sessions.NewTable(config{})
		seed(t, table, "a", "state")
		goOn := make(chan struct{})
		go func() {
			_ = table.Use(t.Context(), "a", func(context.Context, string) error { <-goOn; return nil })
		}()
		synctest.Wait()
		visited := false
		go func() {
			_ = table.Each(t.Context(), func(sessions.Held[string]) error { visited = true; return nil })
		}()
		synctest.Wait()
		if visited {
			t.Error("it was visited during a call")
		}
		close(goOn)
		synctest.Wait()
		if !visited {
			t.Error("it was not visited when the call had ended")
		}
	})
}

func TestAVisitEndsWithItsFirstError(t *testing.T) {
	table := sessions.NewTable(config{})
	seed(t, table, "a", "state")
	seed(t, table, "b", "state")
	visits := 0
	err := table.Each(t.Context(), func(sessions.Held[string]) error { visits++; return errBad })
	if !errors.Is(err, errBad) || visits != 1 {
		t.Errorf("after %d visits: %v", visits, err)
	}
}

func TestASessionThatIsClosingIsNotVisited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		table := sessions.NewTable(config{Release: func(context.Context, string, string) (string, error) { <-goOn; return "", errBad }})
		seed(t, table, "a", "state")
		go func() { _, _ = table.Close(t.Context(), "a", by(mine)) }()
		synctest.Wait()
		var ids []string
		go func() { ids = idsOf(t, table) }()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if diff := cmp.Diff([]string{"a"}, ids); diff != "" {
			t.Errorf("visited when its release had failed (-want +got):\n%s", diff)
		}
	})
}

// A visit that waits for a call comes before the release that waits for it too.
func TestASessionWhoseEndComesWhileAVisitWaitsIsNotVisited(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, table *table){
		"a close":    func(t *testing.T, table *table) { go func() { _, _ = table.Close(t.Context(), "a", by(mine)) }() },
		"its expiry": func(*testing.T, *table) { time.Sleep(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := sessions.NewTable(config{Lifetime: time.Hour, SweepEvery: 24 * time.Hour})
				seed(t, table, "a", "state")
				goOn := make(chan struct{})
				go func() {
					_ = table.Use(t.Context(), "a", func(context.Context, string) error { <-goOn; return nil })
				}()
				synctest.Wait()
				var ids []string
				go func() { ids = idsOf(t, table) }()
				synctest.Wait()
				end(t, table)
				synctest.Wait()
				close(goOn)
				synctest.Wait()
				if diff := cmp.Diff([]string{}, ids); diff != "" {
					t.Errorf("visited (-want +got):\n%s", diff)
				}
				if err := table.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestARestoreIsAllOrNothing(t *testing.T) {
	table := sessions.NewTable(config{})
	seed(t, table, "open", "state")
	if _, err := table.Close(t.Context(), "closed", by(mine)); err != nil {
		t.Fatal(err)
	}
	held := func(ids ...string) (all []sessions.Held[string]) {
		for _, id := range ids {
			all = append(all, sessions.Held[string]{ID: id, Binding: bound, State: "restored"})
		}
		return all
	}
	err := table.Restore(held("a", "open", "closed", "b", "b"))
	for _, want := range []string{"session open is open here", "session closed: the session is closed here", "session b is there twice"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if diff := cmp.Diff([]string{"open"}, idsOf(t, table)); diff != "" {
		t.Errorf("open after it (-want +got):\n%s", diff)
	}
	if err := table.Restore(held("a", "b")); err != nil {
		t.Fatal(err)
	}
	wantState(t, table, "a", "restored")
	if err := table.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a restore after the shutdown", table.Restore(held("c")), sessions.ErrShutdown)
}
