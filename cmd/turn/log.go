package main

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"
)

// newLogger logs text to a terminal and JSON elsewhere. Lines go to out, which
// stands before the terminal or file that w is.
func newLogger(w, out io.Writer) zerolog.Logger {
	if isTerminal(w) {
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(out).Level(zerolog.InfoLevel).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
