package main

import (
	"context"
	"sync"
	"time"

	"example.com/turn/episode"
)

// noJournal, as the folder of a journal, is none.
const noJournal = "none"

const (
	// closeLeftEvery is how often it is looked for sessions that were left open. While
	// some cannot be closed the time between two looks doubles, up to closeLeftAtLeast.
	closeLeftEvery   = time.Minute
	closeLeftAtLeast = time.Hour
	// lastCloses bounds the last look, when all else has ended.
	lastCloses = 10 * time.Second
)

// keepClosingLeft closes the sessions that drivers have left open which died, before it
// returns, and from then on now and then. stop ends that, with a last look.
func keepClosingLeft(ctx context.Context, driver *episode.Driver) (stop func()) {
	if driver.Config().Journal == "" {
		return func() {}
	}
	open := driver.CloseLeft(ctx)
	looking, end := context.WithCancel(context.WithoutCancel(ctx))
	var looks sync.WaitGroup
	looks.Go(func() {
		for wait := closeLeftEvery; ; wait = nextLook(wait, open) {
			select {
			case <-time.After(wait):
				open = driver.CloseLeft(looking)
			case <-looking.Done():
				return
			}
		}
	})
	return func() {
		end()
		looks.Wait()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCloses)
		defer cancel()
		driver.CloseLeft(last)
	}
}

// nextLook is the wait after another, when so many sessions could not be closed.
func nextLook(wait time.Duration, open int) time.Duration {
	if open == 0 {
		return closeLeftEvery
	}
	return min(2*wait, closeLeftAtLeast)
}
