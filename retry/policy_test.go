package retry_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.com/turn/failures"
	"example.com/turn/retry"
)

// always is a Random that draws the same each time.
func always(x float64) func() float64 { return func() float64 { return x } }

var (
	lowest  = always(0)
	highest = always(math.Nextafter(1, 0))
)

func passing(retryAfter time.Duration) *failures.Failure {
	return &failures.Failure{Reason: "no free GPU", RetryAfter: retryAfter}
}

func TestPolicyNextDecidesWhetherThereIsAnotherAttempt(t *testing.T) {
	const long = 16 * time.Minute // past what the back-off library would allow by default
	terminal := &failures.Failure{Terminal: true, Kind: failures.TransportUnreachable, RetryAfter: time.Second}
	for _, test := range []struct {
		name     string
		policy   retry.Policy
		failure  *failures.Failure
		attempts int
		elapsed  time.Duration
		want     bool
	}{
		{"the default, after one", retry.Policy{}, passing(0), 1, 0, true},
		{"the default, after two", retry.Policy{}, passing(0), 2, 0, true},
		{"the default, after three", retry.Policy{}, passing(0), 3, 0, false},
		{"more than there may be", retry.Policy{}, passing(0), 4, 0, false},
		{"one attempt", retry.Policy{MaxAttempts: 1}, passing(0), 1, 0, false},
		{"ten, after nine", retry.Policy{MaxAttempts: 10}, passing(0), 9, 0, true},
		{"ten, after ten", retry.Policy{MaxAttempts: 10}, passing(0), 10, 0, false},
		{"terminal, whatever its kind and Retry-After", retry.Policy{}, terminal, 1, 0, false},
		{"no kind", retry.Policy{}, &failures.Failure{}, 1, 0, true},

		{"much time, without a cap", retry.Policy{MaxAttempts: 100}, passing(0), 50, long, true},
		{"days, without a cap", retry.Policy{MaxAttempts: 100}, passing(0), 50, 100 * time.Hour, true},
		{"the first failure takes no time, however long the work", retry.Policy{MaxElapsed: time.Second, Backoff: time.Second, Random: lowest}, passing(0), 1, 0, true},
		{"at the cap", retry.Policy{MaxElapsed: time.Minute, Random: lowest}, passing(0), 2, time.Minute, true},
		{"past the cap", retry.Policy{MaxElapsed: time.Minute, Random: lowest}, passing(0), 2, time.Minute + 1, false},
		{"the wait itself would pass the cap", retry.Policy{MaxElapsed: time.Minute, Backoff: 4 * time.Second, Random: always(0.5)}, passing(0), 1, 59 * time.Second, false},
		{"it just fits", retry.Policy{MaxElapsed: time.Minute, Backoff: 4 * time.Second, Random: always(0.5)}, passing(0), 1, 58 * time.Second, true},
		{"Retry-After would pass the cap", retry.Policy{MaxElapsed: time.Minute, Random: lowest}, passing(2 * time.Minute), 1, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			wait, again := test.policy.Next(test.failure, test.attempts, test.elapsed)
			if again != test.want {
				t.Errorf("another attempt: %v, want %v", again, test.want)
			}
			if !again && wait != 0 {
				t.Errorf("there is no other attempt, but a wait of %s", wait)
			}
		})
	}
}

func TestPolicyNextWaits(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name       string
		policy     retry.Policy
		retryAfter time.Duration
		attempts   int
		shortest   time.Duration
		longest    time.Duration // not reached
	}{
		{"the default, after one", retry.Policy{}, 0, 1, 0, s},
		{"the default, after two", retry.Policy{}, 0, 2, 0, 2 * s},
		{"doubled each time", retry.Policy{}, 0, 6, 0, 32 * s},
		{"up to a minute", retry.Policy{}, 0, 7, 0, 60 * s},
		{"and no further", retry.Policy{}, 0, 8, 0, 60 * s},
		{"ever", retry.Policy{}, 0, 1_000_000, 0, 60 * s},
		{"another back-off", retry.Policy{Backoff: 50 * time.Millisecond}, 0, 3, 0, 200 * time.Millisecond},
		{"one of more than a minute stays", retry.Policy{Backoff: 5 * time.Minute}, 0, 3, 0, 5 * time.Minute},
		{"Retry-After is a floor", retry.Policy{}, 7 * s, 3, 7 * s, 11 * s},
		{"a long Retry-After spreads wider than the back-off", retry.Policy{}, 60 * s, 1, 60 * s, 90 * s},
		{"also without a back-off to speak of", retry.Policy{Backoff: time.Nanosecond}, s, 1, s, 1500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.policy.MaxAttempts = math.MaxInt
			next := func(random func() float64) time.Duration {
				test.policy.Random = random
				wait, again := test.policy.Next(passing(test.retryAfter), test.attempts, 0)
				if !again {
					t.Error("there is no other attempt")
				}
				return wait
			}
			if diff := cmp.Diff(test.shortest, next(lowest)); diff != "" {
				t.Errorf("the shortest wait (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff((test.shortest+test.longest)/2, next(always(0.5))); diff != "" {
				t.Errorf("the middle one (-want +got):\n%s", diff)
			}
			if got := next(highest); got > test.longest || got < test.longest-time.Microsecond {
				t.Errorf("the longest wait is %s, want just under %s", got, test.longest)
			}
		})
	}
}

func TestPolicyNextKeepsWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := retry.Policy{
			MaxAttempts: rapid.IntRange(0, 100).Draw(t, "max attempts"),
			Backoff:     time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "backoff")),
			MaxElapsed:  time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "max elapsed")),
			Random:      always(rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "random")),
		}
		failure := &failures.Failure{
			Terminal:   rapid.Bool().Draw(t, "terminal"),
			RetryAfter: time.Duration(rapid.Int64Range(0, int64(failures.MaxRetryAfter)).Draw(t, "retry after")),
		}
		attempts := rapid.IntRange(1, 200).Draw(t, "attempts")
		elapsed := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "elapsed"))

		wait, again := policy.Next(failure, attempts, elapsed)
		if (failure.Terminal || attempts >= policy.Attempts()) && again {
			t.Fatal("there may be no other attempt")
		}
		if !again {
			if wait != 0 {
				t.Fatalf("there is no other attempt, but a wait of %s", wait)
			}
			return
		}
		backoff := policy.Backoff
		if backoff == 0 {
			backoff = retry.DefaultBackoff
		}
		bound := backoff // doubled with each attempt, up to a minute unless it is more
		for i := 1; i < attempts && bound < retry.MaxBackoff; i++ {
			bound = min(2*bound, max(retry.MaxBackoff, backoff))
		}
		bound = max(bound, failure.RetryAfter/2)
		if wait < failure.RetryAfter || wait > failure.RetryAfter+bound {
			t.Fatalf("the wait is %s, want %s and up to %s more", wait, failure.RetryAfter, bound)
		}
		if policy.MaxElapsed > 0 && elapsed+wait > policy.MaxElapsed {
			t.Fatalf("%s after %s passes the cap of %s", wait, elapsed, policy.MaxElapsed)
		}
	})
}

func TestValidateReportsEverythingThatIsWrong(t *testing.T) {
	const (
		attempts = "the number of attempts must not be negative"
		backoff  = "the back-off must not be negative"
		elapsed  = "the limit on elapsed time must not be negative"
	)
	for _, test := range []struct {
		name   string
		policy retry.Policy
		want   string
	}{
		{"the default", retry.Policy{}, ""},
		{"everything set", retry.Policy{MaxAttempts: 1, Backoff: 1, MaxElapsed: 1}, ""},
		{"attempts", retry.Policy{MaxAttempts: -1}, attempts},
		{"back-off", retry.Policy{Backoff: -1}, backoff},
		{"elapsed time", retry.Policy{MaxElapsed: -1}, elapsed},
		{"all of them", retry.Policy{MaxAttempts: -1, Backoff: -1, MaxElapsed: -1}, attempts + "\n" + backoff + "\n" + elapsed},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if err := test.policy.Validate(); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestThoseRefusedTogetherComeBackSpread(t *testing.T) {
	policy := retry.Policy{Random: rand.New(rand.NewPCG(1, 2)).Float64}
	earliest, latest := time.Hour, time.Duration(0)
	for range 50 {
		wait, _ := policy.Next(passing(time.Second), 1, 0)
		earliest, latest = min(earliest, wait), max(latest, wait)
	}
	if earliest < time.Second || latest-earliest < 200*time.Millisecond {
		t.Errorf("50 come back from %s to %s, want none before 1s and 200ms between the first and the last", earliest, latest)
	}
}

func TestTheZeroPolicyDrawsItsWaits(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		wait, again := retry.Policy{}.Next(passing(0), 1, 0)
		if !again || wait < 0 || wait > time.Second {
			t.Fatalf("the wait is %s, %v", wait, again)
		}
		seen[wait] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 waits are only %d different ones", len(seen))
	}
}

func ExamplePolicy_Next() {
	policy := retry.Policy{
		MaxAttempts: 4,
		Random:      func() float64 { return 0.5 }, // for the example; nil draws
	}
	failure := &failures.Failure{Reason: "no free GPU"}
	for attempts := 1; ; attempts++ {
		if attempts == 2 {
			failure.RetryAfter = 2 * time.Second
		}
		wait, again := policy.Next(failure, attempts, 0)
		fmt.Println(wait, again)
		if !again {
			return
		}
	}
	// Output:
	// 500ms true
	// 3s true
	// 4s true
	// 0s false
}
