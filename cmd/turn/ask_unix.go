//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"example.com/turn/internal/progress"
)

// whenAsked prints how a run stands on each SIGUSR1, until it is stopped.
func whenAsked(screen *progress.Screen) (stop func()) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range asked {
			screen.Print()
		}
	}()
	return func() {
		signal.Stop(asked)
		close(asked)
		<-ended
	}
}
