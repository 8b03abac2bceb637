package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"example.com/turn/internal/filelock"
	"example.com/turn/protocol"
)

// ErrNoLocks is the error of a folder on a file system that has no locks: nothing
// there could tell a dead driver's sessions from a live one's.
var ErrNoLocks = filelock.ErrNoLocks

// A Session is all that closing one needs.
type Session struct {
	Server    string             `json:"server"` // "resources" or "agent"
	URL       string             `json:"url"`    // base URL of that server
	ID        string             `json:"session_id"`
	EpisodeID protocol.EpisodeID `json:"episode_id"`
	Began     time.Time          `json:"began"` // set by [Journal.Begin]
}

// A Config says where a journal is.
type Config struct {
	// Dir is the folder, which is made where there is none.
	Dir string
	// Clock is the time. Nil: time.Now.
	Clock func() time.Time
}

// A Journal notes one driver's sessions. It is safe for concurrent use. A nil one
// notes nothing.
type Journal struct {
	config Config
	file   *file // the writer's alone while that runs

	mu     sync.Mutex
	next   *group               // what the writer writes next
	open   map[string]time.Time // when the sessions began that are noted, or are about to be; by id
	left   map[string]Session   // those of them that nobody is about to close; by id
	closed bool

	wake   chan struct{} // somebody waits for the next group
	lazy   *time.Timer   // nobody does, and it is written all the same
	stop   chan struct{}
	writer sync.WaitGroup

	unwritten error // what kept the writer from writing its last group
}

// Open makes a journal in a folder. [Journal.Close] releases it.
func Open(config Config) (*Journal, error) {
	if config.Clock == nil {
		config.Clock = time.Now
	}
	dir, err := filepath.Abs(config.Dir) // for as long as the process lives, wherever it goes
	if err != nil {
		return nil, fmt.Errorf("the journal %s: %w", config.Dir, err)
	}
	config.Dir = dir
	file, err := create(dir)
	if err != nil {
		return nil, fmt.Errorf("the journal %s: %w", config.Dir, err)
	}
	j := &Journal{
		config: config,
		file:   file,
		next:   newGroup(),
		open:   map[string]time.Time{},
		left:   map[string]Session{},
		wake:   make(chan struct{}, 1),
		lazy:   time.NewTimer(never),
		stop:   make(chan struct{}),
	}
	j.writer.Go(j.write)
	return j, nil
}

// Begin notes a session that is about to be seeded. It is on disk when Begin returns
// nil; otherwise, also when ctx has ended, it must not be seeded.
func (j *Journal) Begin(ctx context.Context, s Session) error {
	if j == nil {
		return nil
	}
	s.Began = j.config.Clock()
	g, err := j.add(s)
	if err != nil {
		return j.named(err)
	}
	select {
	case <-g.written:
		return j.named(g.err)
	case <-ctx.Done():
		j.End(s)
		return context.Cause(ctx)
	}
}

// End notes that a session's close was confirmed. One that is not noted has nothing to
// end, or to leave.
func (j *Journal) End(s Session) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, noted := j.open[s.ID]; !noted {
		return
	}
	delete(j.open, s.ID)
	delete(j.left, s.ID)
	j.next.ended = append(j.next.ended, s.ID)
	j.lazy.Reset(lazily)
}

// Leave notes that a session's close failed for good: it is one of those [Journal.Left].
func (j *Journal) Leave(s Session) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	began, noted := j.open[s.ID]
	if !noted {
		return
	}
	s.Began = began
	j.left[s.ID] = s
}

// Left are the sessions that are open and that nobody is about to close, the oldest
// first: those adopted from dead drivers, and this one's whose close has failed.
func (j *Journal) Left() []Session {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.left), func(a, b Session) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.ID, b.ID))
	})
}

// Count is how many sessions are noted as open, and how many of them nobody is about to
// close.
func (j *Journal) Count() (open, left int) {
	if j == nil {
		return 0, 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.open), len(j.left)
}

// Trim ends the oldest of those left that are more than so many, and returns them.
func (j *Journal) Trim(most int) []Session {
	left := j.Left()
	if len(left) <= most {
		return nil
	}
	given := left[:len(left)-most]
	for _, s := range given {
		j.End(s)
	}
	return given
}

// Adopt takes over the sessions of drivers that have died, and takes their files away.
// A file that cannot be read is set aside under another name. The error, which may
// join several, is of what could not be taken over.
func (j *Journal) Adopt() error {
	if j == nil {
		return nil
	}
	paths, err := others(j.config.Dir)
	errs := []error{err}
	for _, path := range paths {
		if path == j.file.path { // on some file systems its lock would not keep us out
			continue
		}
		dead, err := openDead(path)
		if dead != nil {
			err = j.adopt(dead)
		}
		errs = append(errs, err)
	}
	return j.named(errors.Join(errs...))
}

func (j *Journal) adopt(dead *file) error {
	sessions, err := dead.sessions()
	if err != nil {
		return dead.unusable(err)
	}
	if err := j.takeOver(sessions); err != nil { // they stay where they are
		return errors.Join(err, dead.close())
	}
	return errors.Join(dead.remove(), dead.close())
}

func (j *Journal) takeOver(sessions []Session) error {
	if len(sessions) == 0 {
		return nil
	}
	g, err := j.add(sessions...)
	if err != nil {
		return err
	}
	if <-g.written; g.err != nil {
		return g.err
	}
	for _, s := range sessions {
		j.Leave(s)
	}
	return nil
}

// Close ends the journal. Its file goes when no session is open, and stays for the
// next driver otherwise.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.mu.Unlock()
	if closed {
		return nil
	}
	close(j.stop)
	j.writer.Wait()
	sessions, err := j.file.sessions()
	switch {
	case err != nil:
	case !j.file.stillThere():
		err = errTakenAway
	case len(sessions) == 0:
		err = j.file.remove()
	}
	err = errors.Join(j.unwritten, err, j.file.close())
	removeFolder(j.config.Dir)
	return j.named(err)
}

func (j *Journal) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the journal %s: %w", j.config.Dir, err)
}
