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
	stalled atomic.Bool // a write has waited in vain
	dropped atomic.Int64
	broken  atomic.Pointer[error]
}

// outletRoom is how many writes wait for a reader that is slow.
const outletRoom = 4096

// outletPatience is how long a write waits for room, once, before it is dropped.
const outletPatience = time.Second

// NewOutlet makes an outlet. When there is no more room in it, a write waits for the
// reader: until patient is closed, or for a second where it is nil. Then it is
// dropped, and those behind it are not waited for either until there is room again.
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
	default:
		o.wait(line)
	}
	return len(p), nil
}

// wait waits for room for a line.
func (o *Outlet) wait(line []byte) {
	var enough <-chan time.Time
	if o.patient == nil {
		if o.stalled.Load() {
			o.dropped.Add(1)
			return
		}
		timer := time.NewTimer(outletPatience)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case o.lines <- line:
		return
	case <-o.patient:
	case <-enough:
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
	if n := o.dropped.Load(); n > 0 {
		select {
		case o.lines <- fmt.Appendf(nil, "(%d lines were left out: nobody read them in time)\n", n):
		default:
		}
	}
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
