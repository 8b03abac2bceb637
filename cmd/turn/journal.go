package main

import (
	"context"
	"sync"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
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

// A leftCloser closes the sessions that drivers have left open which died: at once, and
// from then on now and then.
type leftCloser struct {
	driver *episode.Driver
	// looked is closed when the first look is over: only then is other work to begin.
	looked chan struct{}
	end    context.CancelFunc
	looks  sync.WaitGroup
}

// closeLeft begins to close what was left, until ctx ends or stop is called.
func closeLeft(ctx context.Context, driver *episode.Driver) *leftCloser {
	c := &leftCloser{driver: driver, looked: make(chan struct{})}
	ctx, c.end = context.WithCancel(ctx)
	if driver.Config().Journal == "" {
		close(c.looked)
		return c
	}
	c.looks.Go(func() {
		c.first(ctx)
		for wait := closeLeftEvery; c.pause(ctx, wait); {
			wait = nextLook(wait, driver.CloseLeft(ctx))
		}
	})
	return c
}

// first is the look for which all else waits: as long as one close may take, and no
// longer.
func (c *leftCloser) first(ctx context.Context) {
	defer close(c.looked)
	limit := c.driver.Config().CleanupTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &failures.Limit{Name: "time for closing what was left", After: limit})
	defer cancel()
	c.driver.CloseLeft(ctx)
}

// pause waits, and reports false when there is no further look.
func (c *leftCloser) pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stop ends the looks, with a last one.
func (c *leftCloser) stop() {
	c.end()
	c.looks.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), lastCloses)
	defer cancel()
	c.driver.CloseLeft(ctx)
}

// nextLook is the wait after another, when so many sessions could not be closed.
func nextLook(wait time.Duration, open int) time.Duration {
	if open == 0 {
		return closeLeftEvery
	}
	return min(2*wait, closeLeftAtLeast)
}
