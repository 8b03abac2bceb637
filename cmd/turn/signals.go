package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// A stopSignal is the signal that ended a context.
type stopSignal struct{ signal syscall.Signal }

func (s stopSignal) Error() string { return fmt.Sprintf("stopped by %s", s.signal) }

// status is the exit status of a program that a signal stopped.
func (s stopSignal) status() int { return 128 + int(s.signal) }

// untilSignal returns a context that SIGINT or SIGTERM ends, with a stopSignal as
// its cause. The second signal ends the process at once.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case got := <-signals:
			signal.Stop(signals) // first: the next one, however soon, does what it does by default
			cancel(stopSignal{got.(syscall.Signal)})
		case <-done:
			signal.Stop(signals)
		}
	}()
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}
