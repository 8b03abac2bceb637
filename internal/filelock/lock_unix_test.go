//go:build unix

package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"example.com/turn/internal/filelock"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestAFileHasOneOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owned")
	first, second := open(t, path), open(t, path)
	if err := filelock.Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := filelock.Lock(first); err != nil {
		t.Errorf("the owner itself: %v", err)
	}
	if err := filelock.Lock(second); !errors.Is(err, filelock.ErrOwned) {
		t.Errorf("another while it is owned: got %v, want ErrOwned", err)
	}
	_ = first.Close()
	if err := filelock.Lock(second); err != nil {
		t.Errorf("another when its owner has closed it: %v", err)
	}
}

// What cannot be locked at all is told from what somebody owns.
func TestWhatHasNoLocks(t *testing.T) {
	closed := open(t, filepath.Join(t.TempDir(), "closed"))
	_ = closed.Close()
	if err := filelock.Lock(closed); !errors.Is(err, filelock.ErrNoLocks) {
		t.Errorf("got %v, want ErrNoLocks", err)
	}
}
