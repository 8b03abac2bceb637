package retry_test

import (
	"testing"
	"time"

	"example.com/turn/retry"
)

func TestResendNextByRule(t *testing.T) {
	const (
		repeatable = 1 << iota
		release
		once
		none = 0
		all  = repeatable | release | once
	)
	for _, test := range []struct {
		name  string
		send  retry.Send
		again int
	}{
		{"nothing was written", retry.Send{Sends: 1}, all},
		{"a connection broke", retry.Send{Sends: 1, Written: true}, repeatable | release},
		{"a third re-send", retry.Send{Sends: 3}, all},
		{"a fourth", retry.Send{Sends: 4}, none},
		{"a fourth, refused", retry.Send{Sends: 4, Written: true, Status: 503}, none},

		{"408", retry.Send{Sends: 1, Written: true, Status: 408}, release},
		{"425", retry.Send{Sends: 1, Written: true, Status: 425}, release},
		{"429", retry.Send{Sends: 1, Written: true, Status: 429}, release},
		{"500", retry.Send{Sends: 1, Written: true, Status: 500}, release},
		{"503", retry.Send{Sends: 3, Written: true, Status: 503}, release},
		{"599", retry.Send{Sends: 1, Written: true, Status: 599}, release},
		{"307", retry.Send{Sends: 1, Written: true, Status: 307}, none},
		{"400", retry.Send{Sends: 1, Written: true, Status: 400}, none},
		{"404", retry.Send{Sends: 1, Written: true, Status: 404}, none},
		{"409", retry.Send{Sends: 1, Written: true, Status: 409}, none},
		{"422, with a Retry-After", retry.Send{Sends: 1, Written: true, Status: 422, After: time.Second}, none},
		{"503, by a transport that names no connection", retry.Send{Sends: 1, Status: 503}, release},
	} {
		t.Run(test.name, func(t *testing.T) {
			for rule, bit := range map[retry.Rule]int{retry.Repeatable: repeatable, retry.Release: release, retry.Once: once} {
				wait, again := retry.Resend{}.Next(rule, test.send)
				if want := test.again&bit != 0; again != want {
					t.Errorf("by rule %d it is sent again: %v, want %v", rule, again, want)
				}
				if !again && wait != 0 {
					t.Errorf("by rule %d it is not sent again, but after %s", rule, wait)
				}
			}
		})
	}
}

func TestResendBounds(t *testing.T) {
	for _, test := range []struct {
		name string
		max  int
		want int // sends in all
	}{{"the default", 0, 4}, {"one", 1, 2}, {"never", -1, 1}, {"never at all", -5, 1}, {"ten", 10, 11}} {
		t.Run(test.name, func(t *testing.T) {
			sends := 1
			for ; sends < 100; sends++ {
				if _, again := (retry.Resend{Max: test.max}).Next(retry.Repeatable, retry.Send{Sends: sends}); !again {
					break
				}
			}
			if sends != test.want {
				t.Errorf("it is sent %d times, want %d", sends, test.want)
			}
		})
	}
}

func TestResendWaits(t *testing.T) {
	for _, test := range []struct {
		name              string
		pause             time.Duration
		after             time.Duration
		shortest, longest time.Duration
	}{
		{"the default", 0, 0, 500 * time.Millisecond, 750 * time.Millisecond},
		{"another pause", 10 * time.Millisecond, 0, 10 * time.Millisecond, 15 * time.Millisecond},
		{"the shortest pause", 1, 0, 1, 1},
		{"a Retry-After is a floor", 0, 2 * time.Second, 2 * time.Second, 2250 * time.Millisecond},
		{"a shorter one is none", 0, time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			seen := map[time.Duration]bool{}
			for range 200 {
				wait, again := retry.Resend{Pause: test.pause}.Next(retry.Release, retry.Send{Sends: 1, Written: true, Status: 503, After: test.after})
				if !again || wait < test.shortest || wait > test.longest {
					t.Fatalf("the wait is %s, %v, want %s to %s", wait, again, test.shortest, test.longest)
				}
				seen[wait] = true
			}
			if test.shortest != test.longest && len(seen) < 50 {
				t.Errorf("200 waits are only %d different ones", len(seen))
			}
		})
	}
}
