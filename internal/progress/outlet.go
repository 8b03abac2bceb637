package progress

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// An Outlet stands before a stream whose reader may stop reading, such as a pager or
// a terminal that is held. What is written goes out in its order, by a goroutine of
// the outlet's own.
type Outlet struct {
	out     io.Writer
	patient <-chan struct{} // until it is closed a write waits; nil: none does
	waiting func()          // is told, once, that one waits
	lines   chan []byte
	ended   chan struct{}

	mu      sync.RWMutex // against a write to a closed channel
	closed  bool
	told    sync.Once   // of waiting
	stalled atomic.Bool // a write has waited in vain, and there was no room since
	dropped atomic.Int64
	broken  atomic.Pointer[error]
}

// outletRoom is how many writes wait for a reader that is slow.
const outletRoom = 4096

// outletPatience is how long a write waits for room, once, before it is dropped, or
// before it is told that it waits.
const outletPatience = time.Second

// NewOutlet makes an outlet for what a person reads: nothing that has to be done waits
// for it. Where there is no more room, a write waits for a second and is dropped;
// those behind it are not waited for either until there is room again.
func NewOutlet(out io.Writer) *Outlet { return NewPatientOutlet(out, nil, nil) }

// NewPatientOutlet makes an outlet for what a machine reads: nothing is dropped until
// over is closed. A write waits for the reader, and where it has to wait for longer
// than a second, waiting is called, once.
func NewPatientOutlet(out io.Writer, over <-chan struct{}, waiting func()) *Outlet {
	o := &Outlet{out: out, patient: over, waiting: waiting, lines: make(chan []byte, outletRoom), ended: make(chan struct{})}
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
	if o.isPatient() && o.waitPatiently(line) {
		return
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

// waitPatiently waits for room for a line for as long as its reader is waited for.
func (o *Outlet) waitPatiently(line []byte) (taken bool) {
	timer := time.NewTimer(outletPatience)
	defer timer.Stop()
	for {
		select {
		case o.lines <- line:
			return true
		case <-o.patient:
			return false
		case <-timer.C:
			o.told.Do(o.waiting)
		}
	}
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
