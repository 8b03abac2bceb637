package retry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"example.com/turn/retry"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			wait, until time.Duration // until: when the context ends
			want        bool
		}{
			{time.Minute, time.Hour, true},
			{time.Hour, time.Minute, false},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), test.until)
			began := time.Now()
			got := retry.Wait(ctx, test.wait)
			if took := time.Since(began); got != test.want || took != time.Minute {
				t.Errorf("a wait of %s in a context of %s: %v after %s, want %v after 1m", test.wait, test.until, got, took, test.want)
			}
			cancel()
		}
	})
}
