package collect

import (
	"fmt"
	"time"
)

// An OutageError says that a run ended because nobody was there to go on with.
type OutageError struct{ Reason string }

func (e *OutageError) Error() string {
	return fmt.Sprintf("nobody has been there for %s, and no further attempt began: %s", outagePatience, e.Reason)
}

// An outage is a time in which the only server cannot be reached. It holds rows that
// have not begun back, which would use up the attempts of a whole dataset otherwise:
// those that it has met, and now and then one more, look whether the server is back.
// Its zero value is none.
type outage struct {
	on     bool
	reason string // the failure that it began with
	since  time.Time
	until  time.Time // when the next row may look
}

const (
	// lookInterval is how long no row begins in an outage after another has.
	lookInterval = 10 * time.Second
	// outagePatience is how long an outage may be before the run gives up: each look
	// costs a row its attempts.
	outagePatience = 10 * time.Minute
)

// holds reports whether rows are held back.
func (o *outage) holds(now time.Time) bool { return o.on && now.Before(o.until) }

// hopeless reports whether the outage has been too long to be waited for.
func (o *outage) hopeless(now time.Time) bool { return o.on && now.Sub(o.since) >= outagePatience }

// probed tells that a row has begun.
func (o *outage) probed(now time.Time) {
	if o.on {
		o.until = now.Add(lookInterval)
	}
}

// heard tells how an attempt has ended: with nobody there, or in any other way,
// which ends the outage. It reports whether that is news.
func (o *outage) heard(nobody bool, now time.Time) (news bool) {
	if nobody == o.on {
		return false
	}
	*o = outage{on: nobody, since: now, until: now.Add(lookInterval)}
	return true
}
