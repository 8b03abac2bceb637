package episode

import (
	"context"
	"errors"
	"fmt"

	"example.com/turn/failures"
	"example.com/turn/internal/journal"
	"example.com/turn/protocol"
)

// ErrNoLocks is the error of a journal on a file system without locks: nothing there
// could tell a dead driver's sessions from a live one's.
var ErrNoLocks = journal.ErrNoLocks

// A JournalError says that a driver's journal cannot be kept in its folder.
type JournalError struct{ Err error }

func (e *JournalError) Error() string { return e.Err.Error() }

func (e *JournalError) Unwrap() error { return e.Err }

func openJournal(dir string) (*journal.Journal, error) {
	if dir == "" {
		return nil, nil
	}
	j, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		return nil, &JournalError{err}
	}
	return j, nil
}

// Noted is how many sessions the journal has as open, and how many of them were left open
// and wait for [Driver.CloseLeft].
func (d *Driver) Noted() (open, left int) { return d.journal.Count() }

func (d *Driver) onResources(id string, episode protocol.EpisodeID) *journal.Session {
	return &journal.Session{Server: string(ResourcesServer), URL: d.resources.URL(), ID: id, EpisodeID: episode}
}

func (d *Driver) onAgent(id string, episode protocol.EpisodeID) *journal.Session {
	return &journal.Session{Server: string(AgentServer), URL: d.agent.URL(), ID: id, EpisodeID: episode}
}

// note has a session on disk before it is seeded. That ctx has ended is left to the
// seed, which then sends nothing and says what it was.
func (d *Driver) note(ctx context.Context, stage failures.Stage, s *journal.Session) error {
	err := d.journal.Begin(ctx, *s)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	f := failures.New(stage, failures.PersistenceFailed, fmt.Sprintf("the %s session was not seeded, for it could not be noted: %v", s.Server, err))
	f.Unsent, f.Err = true, err
	return f
}

// unnoteUnsent takes a session out of the journal whose seed has reached nobody: it is
// not open, and the next attempt has another.
func (d *Driver) unnoteUnsent(s *journal.Session, err error) {
	var f *failures.Failure
	if errors.As(err, &f) && f.Unsent {
		d.journal.End(*s)
	}
}

// closed notes what became of a session's close.
func (d *Driver) closed(s *journal.Session, err error) {
	if err != nil {
		d.journal.Leave(*s)
		return
	}
	d.journal.End(*s)
}
