package journal

import (
	"fmt"
	"testing"
)

// transaction is the number of the last one.
func transaction(t *testing.T, j *Journal) int {
	t.Helper()
	tx, err := j.file.db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	return tx.ID()
}

// Those that wait for the disk at the same time wait for it together.
func TestWaitersShareATransaction(t *testing.T) {
	j, err := Open(Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	before := transaction(t, j)
	slow, err := j.file.db.Begin(true) // the disk
	if err != nil {
		t.Fatal(err)
	}
	const sessions = 64
	groups := map[*group]bool{}
	for i := range sessions {
		g, err := j.add(Session{ID: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		groups[g] = true
	}
	if err := slow.Rollback(); err != nil {
		t.Fatal(err)
	}
	for g := range groups {
		if <-g.written; g.err != nil {
			t.Error(g.err)
		}
	}
	if got := transaction(t, j) - before; got > 2 {
		t.Errorf("%d sessions took %d transactions, want that of the first of them and one more", sessions, got)
	}
	if all, err := j.file.sessions(); err != nil || len(all) != sessions {
		t.Errorf("%d sessions are there (error %v), want %d", len(all), err, sessions)
	}
}
