package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// A stopSignal is the signal that ended a context.
type stopSignal struct{ signal syscall.Signal }

func (s stopSignal) Error() string { return fmt.Sprintf("stopped by %s", s.signal) }

// status is the exit status of a program that a signal stopped.
func (s stopSignal) status() int { return 128 + int(s.signal) }

// stopSignals are those that stop the program in good order. That the terminal has
// gone is one of them, unless whoever started the program has seen to that (nohup).
func stopSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// together is how soon after the first signal others are the same one: timeout(1)
// sends it to its command and to the group that this is in, and so does many a
// wrapper that passes on what its terminal has sent to both.
const together = 50 * time.Millisecond

// untilSignal returns a context that a stop signal ends, with a stopSignal as its
// cause. The second signal ends the process at once, by us: what a signal does by
// default is not the same for a program that a shell has started in the background.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stopSignals()...)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case got := <-signals:
			passOver(signals, together)
			cancel(stopSignal{got.(syscall.Signal)})
		case <-done:
			return
		}
		select {
		case got := <-signals:
			lastWord()
			os.Exit(stopSignal{got.(syscall.Signal)}.status())
		case <-done:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		<-ended
		cancel(nil)
	}
}

// passOver drops the signals that come within the window.
func passOver(signals <-chan os.Signal, window time.Duration) {
	over := time.After(window)
	for {
		select {
		case <-signals:
		case <-over:
			return
		}
	}
}

// lastWord says what a second signal has done, to whoever reads it at once.
func lastWord() {
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, _ = fmt.Fprintln(os.Stderr, "\nturn: ended at once; the sessions of what was under way are left open, for the next start to close where there is a journal")
	}()
	select {
	case <-said:
	case <-time.After(100 * time.Millisecond):
	}
}

// surviveClosedPipes has a write to a standard stream that nobody reads any more
// fail, where it would end the process: its episodes would never be closed.
func surviveClosedPipes() { signal.Ignore(syscall.SIGPIPE) }
