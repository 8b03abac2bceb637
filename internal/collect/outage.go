package collect

import "time"

// An outage is a time in which the only server cannot be reached. It holds rows that
// have not begun back, which would use up the attempts of a whole dataset otherwise:
// those that it has met, and now and then one more, look whether the server is back.
// Its zero value is none.
type outage struct {
	on    bool
	until time.Time // when the next row may look
}

// lookInterval is how long no row begins in an outage after another has.
const lookInterval = 10 * time.Second

// holds reports whether rows are held back.
func (o *outage) holds(now time.Time) bool { return o.on && now.Before(o.until) }

// probed tells that a row has begun.
func (o *outage) probed(now time.Time) {
	if o.on {
		o.until = now.Add(lookInterval)
	}
}

// heard tells how an attempt has ended: with nobody there, or in any other way,
// which ends the outage.
func (o *outage) heard(nobody bool) {
	if nobody && !o.on {
		o.until = time.Now().Add(lookInterval)
	}
	o.on = nobody
}
