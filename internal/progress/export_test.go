package progress

import "io"

// NewScreenOfWidth makes a live screen on a terminal that is as wide as the function
// says at the moment.
func NewScreenOfWidth(meter *Meter, out io.Writer, width func() int) *Screen {
	s := NewScreen(meter, out)
	s.width = width
	return s
}
