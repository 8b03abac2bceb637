package failures

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter caps what a server may ask for with Retry-After.
const MaxRetryAfter = 10 * time.Minute

// ParseRetryAfter reads a Retry-After header of either form, seconds or a date,
// as a time to wait from now. Nonsense and the past are 0, absurd values are
// capped at [MaxRetryAfter].
func ParseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789.") == "" {
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil && seconds == 0 {
			return 0
		}
		return time.Duration(min(seconds, MaxRetryAfter.Seconds()) * float64(time.Second))
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}
