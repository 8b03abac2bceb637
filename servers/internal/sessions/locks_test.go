package sessions_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"example.com/turn/servers/internal/sessions"
)

func TestALockKeepsOutItsOwnIDOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks sessions.Locks
		unlock := lock(t, &locks, "a")
		lock(t, &locks, "b")()

		got := false
		go func() {
			defer lock(t, &locks, "a")()
			got = true
		}()
		synctest.Wait()
		if got {
			t.Fatal("two hold the lock of one id")
		}
		unlock()
		synctest.Wait()
		if !got {
			t.Fatal("the lock that was given back is not to be had")
		}
	})
}

func TestALockIsDroppedWithItsLastUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks sessions.Locks
		unlock := lock(t, &locks, "a")
		reason := errors.New("the caller went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		var err error
		go func() { _, err = locks.Lock(ctx, "a") }()
		synctest.Wait()
		cancel(reason)
		synctest.Wait()
		if !errors.Is(err, reason) {
			t.Errorf("the cancelled waiter got %v, want %v", err, reason)
		}
		if n := locks.Len(); n != 1 {
			t.Errorf("there are %d locks while one is held, want 1", n)
		}
		unlock()
		if n := locks.Len(); n != 0 {
			t.Errorf("%d locks are left, want none", n)
		}
	})
}

func lock(t *testing.T, locks *sessions.Locks, id string) (unlock func()) {
	t.Helper()
	unlock, err := locks.Lock(t.Context(), id)
	if err != nil {
		t.Error(err)
		return func() {}
	}
	return unlock
}
