package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// How often a line is shown.
const (
	liveInterval  = time.Second / 2
	plainInterval = 30 * time.Second
)

// A Screen shows a meter's line while a run goes on. What else is written meanwhile
// must be written through it, so that a live line and a log line do not garble
// each other.
type Screen struct {
	meter *Meter
	out   io.Writer
	width func() int // columns of the terminal; nil: it is none

	mu    sync.Mutex
	shown int // characters of the live line that is on the terminal; 0: there is none
	stop  chan struct{}
	ended sync.WaitGroup
}

// NewScreen makes a screen of plain lines.
func NewScreen(meter *Meter, out io.Writer) *Screen {
	return &Screen{meter: meter, out: out, stop: make(chan struct{})}
}

// NewLiveScreen makes a screen with one live line on a terminal, whose size is that
// of the file descriptor.
func NewLiveScreen(meter *Meter, out io.Writer, fd int) *Screen {
	s := NewScreen(meter, out)
	s.width = func() int { return columns(fd) }
	return s
}

// columns is the width of a terminal, which may change at any moment.
func columns(fd int) int {
	width, _, err := term.GetSize(fd)
	if err != nil || width <= 0 {
		return 80
	}
	return width
}

// Start shows the line every so often until Stop.
func (s *Screen) Start() {
	interval := plainInterval
	if s.width != nil {
		interval = liveInterval
	}
	s.Every(interval, s.show)
}

// Every calls a function at that interval until Stop.
func (s *Screen) Every(interval time.Duration, do func(time.Time)) {
	s.ended.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				do(now)
			case <-s.stop:
				return
			}
		}
	})
}

// Print shows how the run stands in a line that stays.
func (s *Screen) Print() {
	_, _ = fmt.Fprintln(s, s.meter.Line(time.Now())) // nobody could be told
}

// Stop takes the live line away. The screen may still be written to.
func (s *Screen) Stop() {
	close(s.stop)
	s.ended.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

func (s *Screen) show(now time.Time) {
	if s.width == nil {
		_, _ = fmt.Fprintln(s, s.meter.Line(now))
		return
	}
	line := s.meter.LineWithin(s.width()-1, now)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, s.clearing()+line)
	s.shown = utf8.RuneCountInString(line)
}

// Control sequences of terminals.
const (
	lineUp   = "\x1b[A"
	clearEnd = "\x1b[J" // all behind the cursor
)

// clear takes the live line away.
func (s *Screen) clear() {
	if s.shown > 0 {
		_, _ = io.WriteString(s.out, s.clearing())
		s.shown = 0
	}
}

// clearing is what takes the live line away. A terminal that has become narrower
// meanwhile has wrapped it.
func (s *Screen) clearing() string {
	if s.shown == 0 {
		return ""
	}
	wrapped := (s.shown - 1) / max(s.width(), 1)
	return "\r" + strings.Repeat(lineUp, wrapped) + clearEnd
}

// Write writes whole lines, above the live one.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	return s.out.Write(p)
}
