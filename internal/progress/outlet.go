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
	dropped atomic.Int64
	broken  atomic.Pointer[error]
}

// outletRoom is how many writes wait for a reader that is slow.
const outletRoom = 4096

// NewOutlet makes an outlet. When there is no more room in it, writes wait until
// patient is closed, and are dropped after that; with nil they are dropped at once.
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
	line := append([]byte(nil), p...)
	switch {
	case o.closed:
		return 0, io.ErrClosedPipe
	case o.patient == nil:
		select {
		case o.lines <- line:
		default:
			o.dropped.Add(1)
		}
		return len(p), nil
	}
	select {
	case o.lines <- line:
	case <-o.patient:
		select {
		case o.lines <- line:
		default:
			o.dropped.Add(1)
		}
	}
	return len(p), nil
}

// lastWords is how long a reader has to take what is left.
const lastWords = 2 * time.Second

// Close returns when all is written, or nobody reads it. The goroutine of one that
// waits for a reader ends with the process.
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
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-o.ended:
	case <-timer.C:
	}
}

// Err is why something could not be written, nil when all could or may yet be.
func (o *Outlet) Err() error {
	if broken := o.broken.Load(); broken != nil {
		return *broken
	}
	return nil
}
