package main

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"

	"example.com/turn/internal/progress"
)

// logFlags say how the log is written.
type logFlags struct {
	LogFormat string `help:"How log lines are written: ${enum}; auto is text on a terminal and JSON elsewhere." enum:"auto,text,json" default:"auto"`
	LogLevel  string `help:"What is logged at least: ${enum}." enum:"debug,info,warn,error" default:"info"`
}

// newLogger logs to out, which stands before the terminal or file that w is.
func (f logFlags) newLogger(w, out io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(f.LogLevel)
	if err != nil || level == zerolog.NoLevel { // a program without arguments has none
		level = zerolog.InfoLevel
	}
	if f.LogFormat == "text" || f.LogFormat != "json" && isTerminal(w) {
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.TimeOnly, NoColor: !isTerminal(w) || isDumb(), FormatMessage: func(message any) string {
			text, _ := message.(string) // an event may have none
			return progress.OnOneLine(text)
		}}
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// isDumb reports whether the terminal takes no orders: neither colours nor the cursor's
// way back.
func isDumb() bool { return os.Getenv("TERM") == "dumb" }
