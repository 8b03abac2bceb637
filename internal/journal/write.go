package journal

import (
	"errors"
	"time"
)

const (
	// lazily is when the ends of sessions are written for which nobody waits.
	lazily = 50 * time.Millisecond
	// company is how long a group waits for more sessions where the one before had
	// several: under load that makes for fewer transactions, and less work in all.
	company = 2 * time.Millisecond
	never   = 1 << 62
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
	crowded := false
	for {
		select {
		case <-j.wake:
			if crowded {
				time.Sleep(company)
			}
		case <-j.lazy.C:
		case <-j.stop:
			_, j.unwritten = j.writeNext()
			return
		}
		begun, _ := j.writeNext() // whoever waits for it is told of its error
		crowded = begun > 1
	}
}

// writeNext writes the next group, and returns how many sessions have begun with it.
func (j *Journal) writeNext() (begun int, err error) {
	j.mu.Lock()
	g := j.next
	if g.empty() {
		j.mu.Unlock()
		return 0, nil
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
	return len(g.begun), g.err
}
