package progress

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// An Outlet stands before a stream whose reader may stop reading, such as a pager or
// a terminal that is held: nothing that a run has to do waits for it. What is written
// goes out in its order, by a goroutine of the outlet's own.
type Outlet struct {
	out     io.Writer
	patient <-chan struct{}
	lines   chan []byte
	ended   chan struct{}

	mu      sync.RWMutex // against a write to a closed channel
	closed  bool
	stalled atomic.Bool // a write has waited in vain, and there was no room since
	dropped atomic.Int64
	broken  atomic.Pointer[error]
}

// outletRoom is how many writes wait for a reader that is slow.
const outletRoom = 4096

// outletPatience is how long a write waits for room, once, before it is dropped.
const outletPatience = time.Second

// NewOutlet makes an outlet. When there is no more room in it, a write waits for the
// reader: until patient is closed, or where it is nil not at all, and for a second
// more. Then it is dropped, and those behind it are not waited for either until there
// is room again.
func NewOutlet(out io.Writer, patient <-chan struct{}) *Outlet {
	o := &Outlet{out: out, patient: patient, lines: make(chan []byte, outletRoom), ended: make(chan struct{})}
	go o.run()
	return o
}

func (o *Outlet) run() {
	defer close(o.ended)
	for line := range o.lines {
		if _, err := o.out.Write(line); err != nil {
			o.broken.CompareAndSwap(nil, &err)
		}
	}
}

// Write takes what is to be written. Its error is that of an earlier write.
func (o *Outlet) Write(p []byte) (int, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if broken := o.broken.Load(); broken != nil {
		return 0, *broken
	}
	if o.closed {
		return 0, io.ErrClosedPipe
	}
	line := append([]byte(nil), p...)
	select {
	case o.lines <- line:
		o.stalled.Store(false)
		o.confess()
	default:
		o.wait(line)
	}
	return len(p), nil
}

// confess tells how much was left out, now that there is room again. To a machine
// nothing is told that is no event.
func (o *Outlet) confess() {
	if n := o.dropped.Load(); n > 0 && o.patient == nil && o.dropped.CompareAndSwap(n, 0) {
		select {
		case o.lines <- fmt.Appendf(nil, "(%d lines were left out: nobody read them in time)\n", n):
		default:
			o.dropped.Add(n)
		}
	}
}

// wait waits for room for a line.
func (o *Outlet) wait(line []byte) {
	if o.isPatient() {
		select {
		case o.lines <- line:
			return
		case <-o.patient:
		}
	}
	if !o.stalled.Load() {
		timer := time.NewTimer(outletPatience)
		defer timer.Stop()
		select {
		case o.lines <- line:
			return
		case <-timer.C:
		}
	}
	o.stalled.Store(true)
	o.dropped.Add(1)
}

// lastWords is how long a reader has to take something of what is left.
const lastWords = 2 * time.Second

// Close returns when all is written, or nobody has taken anything for two seconds
// and none is to be waited for. The goroutine of one that nobody reads ends with the
// process.
func (o *Outlet) Close() {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return
	}
	o.closed = true
	o.confess()
	close(o.lines)
	o.mu.Unlock()
	ticker := time.NewTicker(lastWords)
	defer ticker.Stop()
	for left := -1; ; {
		select {
		case <-o.ended:
			return
		case <-ticker.C:
		}
		if len(o.lines) == left && !o.isPatient() {
			return
		}
		left = len(o.lines)
	}
}

// Drain returns when there is room for what comes last, or nobody takes anything.
func (o *Outlet) Drain() {
	ticker := time.NewTicker(lastWords / 20)
	defer ticker.Stop()
	for left, since := len(o.lines), time.Now(); len(o.lines) > outletRoom/2; <-ticker.C {
		if now := len(o.lines); now != left {
			left, since = now, time.Now()
		}
		if time.Since(since) >= lastWords {
			return
		}
	}
}

// isPatient reports whether the reader is to be waited for.
func (o *Outlet) isPatient() bool {
	if o.patient == nil {
		return false
	}
	select {
	case <-o.patient:
		return false
	default:
		return true
	}
}

// Err is why something could not be written, nil when all could or may yet be.
func (o *Outlet) Err() error {
	if broken := o.broken.Load(); broken != nil {
		return *broken
	}
	return nil
}
