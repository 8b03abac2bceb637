package episode

import (
	"context"
	"iter"
	"sync"

	"example.com/turn/retry"
)

// Options say how [All] runs its requests.
type Options struct {
	// Concurrency is how many episodes are in flight at most. 0: one.
	Concurrency int
	// Policy says which failures go round again.
	Policy retry.Policy
}

// An Outcome is what became of one request: the last of its attempts.
type Outcome struct {
	Request *Request
	Attempt
}

// All runs requests and yields one outcome for each of them, in the order in
// which they end. Requests are taken as there is room for them, so that there may
// be any number.
//
// When ctx ends, those under way are cancelled, and the rest come out as
// cancelled without a call. When the loop over the outcomes is left early, no
// further request is taken, those under way are cancelled, and All returns when
// their closes have ended, and when requests has given the request that it is
// about to give: it must not block for good. A panic of requests is passed on once
// all have ended.
func All(ctx context.Context, d *Driver, requests iter.Seq[*Request], options Options) iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		ctx, leave := context.WithCancel(ctx)
		b := batch{
			left:     make(chan struct{}),
			outcomes: make(chan Outcome),
			inFlight: make(chan struct{}, max(options.Concurrency, 1)),
		}
		go b.dispatch(ctx, d, requests, options.Policy)
		defer func() { // also when yield panics
			close(b.left)
			leave()
			for range b.outcomes {
			}
		}()
		for outcome := range b.outcomes {
			if !yield(outcome) {
				return
			}
		}
		if b.panicked != nil {
			panic(b.panicked)
		}
	}
}

type batch struct {
	left     chan struct{} // closed when nobody waits for outcomes any more
	outcomes chan Outcome
	inFlight chan struct{} // one entry for each episode
	panicked any           // by requests; set before outcomes is closed
}

// dispatch starts the episodes, and closes outcomes when all have ended.
func (b *batch) dispatch(ctx context.Context, d *Driver, requests iter.Seq[*Request], policy retry.Policy) {
	var running sync.WaitGroup
	defer close(b.outcomes)
	defer running.Wait()
	defer func() { b.panicked = recover() }()
	for request := range requests {
		select {
		case b.inFlight <- struct{}{}:
		case <-b.left:
			return
		}
		select {
		case <-b.left: // both were ready
			return
		default:
		}
		running.Go(func() {
			defer func() { <-b.inFlight }()
			outcome := Outcome{Request: request}
			for attempt := range Attempts(ctx, d, request, policy) {
				outcome.Attempt = attempt
			}
			b.outcomes <- outcome
		})
	}
}
