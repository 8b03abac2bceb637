package sessions

import (
	"context"
	"sync"
)

// Locks are one lock an id: who holds one keeps out others of the same id only.
// A lock is there as long as someone holds it or waits for it. The zero value is
// ready for use.
type Locks struct {
	mu    sync.Mutex
	locks register[*lock]
}

type lock struct {
	turn  chan struct{} // holds one token while the lock is held
	users int           // who hold it or wait for it; guarded by Locks.mu
}

// Lock waits for the id's lock and returns the function that gives it back. The
// error is the cause of ctx when that ended first.
func (l *Locks) Lock(ctx context.Context, id string) (unlock func(), err error) {
	held := l.join(id)
	select {
	case held.turn <- struct{}{}:
		return func() {
			<-held.turn
			l.leave(id, held)
		}, nil
	case <-ctx.Done():
		l.leave(id, held)
		return nil, context.Cause(ctx)
	}
}

// Len is the number of ids whose lock is held or waited for.
func (l *Locks) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks.len()
}

func (l *Locks) join(id string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, there := l.locks.get(id)
	if !there {
		held = &lock{turn: make(chan struct{}, 1)}
		l.locks.set(id, held)
	}
	held.users++
	return held
}

func (l *Locks) leave(id string, held *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held.users--
	if held.users == 0 {
		l.locks.delete(id)
	}
}
