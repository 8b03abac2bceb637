package retry

import (
	"context"
	"time"
)

// Wait waits, and reports false as soon as ctx ends before that.
func Wait(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
