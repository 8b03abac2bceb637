package collect

import (
	"fmt"
	"time"

	"example.com/turn/failures"
	"example.com/turn/retry"
)

// An OutageError says that a run ended because nobody was there to go on with.
type OutageError struct{ Reason string }

func (e *OutageError) Error() string {
	return fmt.Sprintf("no attempt has got through for %s, and no further one began: %s", outagePatience, e.Reason)
}

// An outage is a time in which the only server cannot be reached. It holds rows that
// have not begun back, which would use up the attempts of a whole dataset otherwise:
// those that it has met, and now and then one more, look whether the server is back.
// Its zero value is none.
type outage struct {
	on      bool
	first   failures.Failure // that it began with
	strikes int              // attempts that found nobody there, and nobody has been since
	since   time.Time        // when the first of them had failed
	last    time.Time        // and the last
	took    time.Duration    // that the slowest of them needed to find out, where that was all it did
	until   time.Time        // when the next row may look
}

const (
	// outageStrikes make an outage: a proxy may refuse a single episode.
	outageStrikes = 3
	// lookInterval is how long no row begins in an outage after another has.
	lookInterval = 10 * time.Second
	// outageBackoff is the least wait before the second attempt of a rollout that has met
	// an outage; it doubles with each further one.
	outageBackoff = 5 * time.Second
	// outageQuiet, or twice the time that it takes to find nobody there, ends an outage
	// in which nobody has failed for that long: those that have begun are being served,
	// and may be for hours.
	outageQuiet = 3 * lookInterval
	// outagePatience is how long an outage may be before the run gives up: each look
	// costs a row its attempts.
	outagePatience = 10 * time.Minute
)

// quietAt is when an outage in which nobody has failed since is over.
func (o *outage) quietAt() time.Time { return o.last.Add(max(outageQuiet, 2*o.took)) }

// lasts reports whether there is an outage at the moment.
func (o *outage) lasts(now time.Time) bool { return o.on && now.Before(o.quietAt()) }

// holds reports whether rows are held back.
func (o *outage) holds(now time.Time) bool { return o.lasts(now) && now.Before(o.until) }

// hopeless reports whether the outage has been too long to be waited for. That nobody
// has failed lately is no sign of it.
func (o *outage) hopeless(now time.Time) bool {
	return o.lasts(now) && o.last.Sub(o.since) >= outagePatience
}

// rowBegan tells that a row has begun.
func (o *outage) rowBegan(now time.Time) {
	if o.on {
		o.until = now.Add(lookInterval)
	}
}

// met tells that an attempt that took so long found nobody there, and reports whether
// an outage has begun with that.
func (o *outage) met(f *failures.Failure, took time.Duration, now time.Time) (begun bool) {
	if o.strikes == 0 || !now.Before(o.quietAt()) {
		*o = outage{first: *f, since: now}
	}
	o.strikes++
	o.last = now
	if f.Unsent && (f.Stage == failures.StageSeed || f.Stage == "") { // else an agent may have worked for hours before
		o.took = max(o.took, took)
	}
	if o.on || o.strikes < outageStrikes {
		return false
	}
	o.on, o.until = true, now.Add(lookInterval)
	return true
}

// over tells that an attempt that began then has ended in another way now, and reports
// whether an outage has ended with that.
//
// One that had begun before anybody found nobody there says nothing while others do: a
// server that is going down serves what it has. Nor does one that failed in its seed say
// anything of an agent server.
func (o *outage) over(f *failures.Failure, began, now time.Time) (ended bool) {
	if began.Before(o.since) && now.Sub(o.last) < lookInterval || f != nil && f.Stage == failures.StageSeed && o.first.Stage == failures.StageAgent {
		return false
	}
	ended = o.on
	*o = outage{}
	return ended
}

// floor is the least wait of a rollout after so many attempts, of which the last has
// met an outage: without it, all of them would be used up in seconds.
func (o *outage) floor(attempts int) time.Duration {
	return min(outageBackoff<<min(attempts-1, 10), retry.MaxBackoff)
}
