package retry

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"

	"example.com/turn/failures"
)

// Defaults of a [Policy].
const (
	DefaultMaxAttempts = 3
	DefaultBackoff     = time.Second
	MaxBackoff         = time.Minute
)

// A Policy says whether a failed rollout goes round again. The zero value is the
// default one. It holds no state and is safe to share.
type Policy struct {
	// MaxAttempts is how often a rollout is tried in all. 0: DefaultMaxAttempts;
	// 1: never again.
	MaxAttempts int
	// Backoff bounds the wait after the first attempt; it doubles with each
	// further one, up to MaxBackoff. The wait itself is drawn evenly from
	// nothing to that bound (full jitter), so that those who failed together do
	// not come back together. 0: DefaultBackoff.
	Backoff time.Duration
	// MaxElapsed lets no further attempt begin later than that after the first
	// failure. What the first attempt took does not count; what later ones take
	// does, and so do the waits. An attempt under way is not cut. 0: no limit.
	MaxElapsed time.Duration
	// Random draws from [0, 1). Nil: math/rand/v2.
	Random func() float64
}

// Validate reports everything that is wrong with the policy.
func (p Policy) Validate() error {
	var errs []error
	if p.MaxAttempts < 0 {
		errs = append(errs, errors.New("the number of attempts must not be negative"))
	}
	if p.Backoff < 0 {
		errs = append(errs, errors.New("the back-off must not be negative"))
	}
	if p.MaxElapsed < 0 {
		errs = append(errs, errors.New("the limit on elapsed time must not be negative"))
	}
	return errors.Join(errs...)
}

// Next says whether a rollout goes round again, and after what wait. failure is
// that of the last attempt, attempts is how many there have been, and elapsed is
// the time since the first of them failed (0 right after it).
//
// A Retry-After of the failure is a floor: the wait is never shorter, and what is
// drawn is added to it.
func (p Policy) Next(failure *failures.Failure, attempts int, elapsed time.Duration) (wait time.Duration, again bool) {
	if failure.Terminal || attempts >= p.Attempts() {
		return 0, false
	}
	wait = p.wait(attempts, failure.RetryAfter)
	if p.MaxElapsed > 0 && elapsed+wait > p.MaxElapsed {
		return 0, false
	}
	return wait, true
}

// Attempts is how often a rollout is tried in all.
func (p Policy) Attempts() int {
	if p.MaxAttempts == 0 {
		return DefaultMaxAttempts
	}
	return p.MaxAttempts
}

func (p Policy) wait(attempts int, floor time.Duration) time.Duration {
	bound := p.bound(attempts)
	if floor > 0 {
		// Servers that ask many for the same wait must not get them all back
		// at once, however short our own back-off is.
		bound = max(bound, min(floor/2, MaxBackoff))
	}
	return floor + time.Duration(p.random()*float64(bound))
}

func (p Policy) bound(attempts int) time.Duration {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = p.Backoff
	if p.Backoff == 0 {
		b.InitialInterval = DefaultBackoff
	}
	b.MaxInterval = max(MaxBackoff, b.InitialInterval)
	b.Multiplier = 2
	b.RandomizationFactor = 0 // the jitter is drawn over the whole interval, in wait
	b.MaxElapsedTime = 0      // there is no time for it to count: b lives as long as this call, and Next has MaxElapsed
	b.Reset()
	interval := b.NextBackOff()
	for range min(attempts, 64) - 1 { // 2^64 is past every bound
		interval = b.NextBackOff()
	}
	return interval
}

func (p Policy) random() float64 {
	if p.Random != nil {
		return p.Random()
	}
	return rand.Float64()
}
