package journal

import (
	"errors"
	"time"
)

const (
	// lazily is when the ends of sessions are written for which nobody waits.
	lazily = 50 * time.Millisecond
	never  = 1 << 62
)

// A group is what one transaction writes.
type group struct {
	begun   []Session
	ended   []string
	written chan struct{} // closed when it is on disk, or err says why not
	err     error
}

func newGroup() *group { return &group{written: make(chan struct{})} }

func (g *group) empty() bool { return len(g.begun)+len(g.ended) == 0 }

var errClosed = errors.New("it is closed")

// add has sessions written with the next group.
func (j *Journal) add(sessions ...Session) (*group, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, errClosed
	}
	j.next.begun = append(j.next.begun, sessions...)
	for _, s := range sessions {
		j.open[s.ID] = s.Began
	}
	select {
	case j.wake <- struct{}{}:
	default: // it is awake
	}
	return j.next, nil
}

// write writes one group after the other until the journal is closed.
func (j *Journal) write() {
	defer j.lazy.Stop()
	for {
		select {
		case <-j.wake:
		case <-j.lazy.C:
		case <-j.stop:
			j.unwritten = j.writeNext()
			return
		}
		_ = j.writeNext() // whoever waits for it is told
	}
}

func (j *Journal) writeNext() error {
	j.mu.Lock()
	g := j.next
	if g.empty() {
		j.mu.Unlock()
		return nil
	}
	j.next = newGroup()
	j.mu.Unlock()

	g.err = j.file.write(g.begun, g.ended)
	if g.err != nil { // the ends go with the next group
		j.mu.Lock()
		j.next.ended = append(g.ended, j.next.ended...)
		for _, s := range g.begun {
			delete(j.open, s.ID)
		}
		j.mu.Unlock()
	}
	close(g.written)
	return g.err
}
