package episodetest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// A RandomPlan draws faults. It is made by [Random].
type RandomPlan struct {
	seed  uint64
	rate  float64
	kinds []Kind
}

// Random has that part of the calls (0 to 1) meet a fault of one of the kinds, all of
// them when none is given. What the n-th call on a route meets depends on the seed,
// the route and n alone: a program that makes one call after the other meets the same
// faults again, and one that makes many at a time the same number of each on each route.
//
// Offsets are below 4 KiB, more than half of them below 64, where heads are. Delays are
// up to 50 ms. Answers are refusals that may pass: 429, 500, 502, 503 and 504, with a
// detail. A plan that wants others wraps this one and changes what it returns.
func Random(seed uint64, rate float64, kinds ...Kind) *RandomPlan {
	if len(kinds) == 0 {
		kinds = Kinds()
	}
	return &RandomPlan{seed: seed, rate: rate, kinds: slices.Clone(kinds)}
}

// The bounds of what is drawn.
const (
	offsetBits = 12 // 4 KiB
	mostDelay  = 50 * time.Millisecond
)

var refusals = []int{
	http.StatusTooManyRequests, http.StatusInternalServerError,
	http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

// Fault draws the fault of a call.
func (p *RandomPlan) Fault(call Call) Fault {
	// A generator of its own for each call: no other call, and no order of calls,
	// can have a part in it.
	route := fnv.New64a()
	_, _ = fmt.Fprintf(route, "%s %d", call.Route, call.Nth)
	random := rand.New(rand.NewPCG(p.seed, route.Sum64()))
	if random.Float64() >= p.rate {
		return Fault{}
	}
	fault := Fault{Kind: p.kinds[random.IntN(len(p.kinds))]}
	if fault.Kind.hasOffset() {
		fault.Offset = random.Int64N(1 << random.IntN(offsetBits+1))
	}
	if fault.Kind.delays() {
		fault.Delay = 1 + time.Duration(random.Int64N(int64(mostDelay)))
	}
	if fault.Kind == Answer {
		fault.Status = refusals[random.IntN(len(refusals))]
		fault.Header = http.Header{"Content-Type": {"application/json"}}
		fault.Body = []byte(`{"detail":"a fault of episodetest"}`)
	}
	return fault
}

// Validate reports a rate that is none and kinds that there are not.
func (p *RandomPlan) Validate() error {
	var problems []error
	if !(p.rate >= 0 && p.rate <= 1) {
		problems = append(problems, fmt.Errorf("a rate of %v is not within 0 and 1", p.rate))
	}
	for _, kind := range p.kinds {
		if !slices.Contains(Kinds(), kind) {
			problems = append(problems, fmt.Errorf("there is no fault of kind %q", kind))
		}
	}
	return errors.Join(problems...)
}

// String is how the plan is made again: "episodetest.Random(7, 0.2, "duplicate")".
func (p *RandomPlan) String() string {
	text := fmt.Sprintf("episodetest.Random(%d, %v", p.seed, p.rate)
	if !slices.Equal(p.kinds, Kinds()) {
		for _, kind := range p.kinds {
			text += fmt.Sprintf(", %q", kind)
		}
	}
	return text + ")"
}
