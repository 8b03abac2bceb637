package main

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"example.com/turn/internal/progress"
)

// newLogger logs text to a terminal and JSON elsewhere. Lines go to out, which
// stands before the terminal or file that w is.
func newLogger(w, out io.Writer) zerolog.Logger {
	if isTerminal(w) {
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.TimeOnly, NoColor: isDumb(), FormatMessage: func(message any) string {
			text, _ := message.(string) // an event may have none
			return progress.OnOneLine(text)
		}}
	}
	return zerolog.New(out).Level(zerolog.InfoLevel).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// isDumb reports whether the terminal takes no orders: neither colours nor the cursor's
// way back.
func isDumb() bool { return os.Getenv("TERM") == "dumb" }
