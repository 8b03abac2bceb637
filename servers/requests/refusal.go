package requests

import (
	"fmt"
	"net/http"
	"time"

	"example.com/turn/failures"
)

// A Refusal is an error that is answered with a status of its own, as
// {"detail": Reason, "failure_kind": Kind}. The status decides whether a driver
// tries again: 408, 425, 429 and everything from 500 on it does, another 4xx is
// final.
type Refusal struct {
	Status int           // 0: 500
	Kind   failures.Kind // "": none is named
	Reason string        // what a person reads; "": the text of Err, else of the status
	Err    error         // what lies under it; nil when nothing does

	// RetryAfter is how long the caller is asked to wait, as a Retry-After header
	// in whole seconds, rounded up; 0: it is not asked.
	RetryAfter time.Duration
}

// Refuse makes a refusal that names no kind. The reason is formatted as by
// fmt.Errorf, "%w" included.
func Refuse(status int, format string, args ...any) *Refusal {
	return RefuseAs(status, "", format, args...)
}

// RefuseAs makes a refusal that names a kind.
func RefuseAs(status int, kind failures.Kind, format string, args ...any) *Refusal {
	err := fmt.Errorf(format, args...)
	return &Refusal{Status: status, Kind: kind, Reason: err.Error(), Err: err}
}

func (r *Refusal) Error() string {
	switch {
	case r.Reason != "":
		return r.Reason
	case r.Err != nil:
		return r.Err.Error()
	case r.Status != 0:
		return http.StatusText(r.Status)
	}
	return http.StatusText(http.StatusInternalServerError)
}

// Unwrap returns what lies under the refusal.
func (r *Refusal) Unwrap() error { return r.Err }
