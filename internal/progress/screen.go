package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

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
	shown bool // a live line is on the terminal
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
	s.ended.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				s.show(now)
			case <-s.stop:
				return
			}
		}
	})
}

// Stop takes the live line away. The screen may still be written to.
func (s *Screen) Stop() {
	close(s.stop)
	s.ended.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

const clearLine = "\r\x1b[K"

func (s *Screen) show(now time.Time) {
	line := s.meter.Line(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.width == nil {
		_, _ = fmt.Fprintln(s.out, line)
		return
	}
	_, _ = io.WriteString(s.out, clearLine+truncate(line, s.width()-1))
	s.shown = true
}

func (s *Screen) clear() {
	if s.shown {
		_, _ = io.WriteString(s.out, clearLine)
		s.shown = false
	}
}

// truncate cuts a line to a number of columns, each character being one.
func truncate(line string, columns int) string {
	for i := range line {
		if columns == 0 {
			return line[:i]
		}
		columns--
	}
	return line
}

// Write writes whole lines, above the live one.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	return s.out.Write(p)
}
