package episode

import (
	"context"

	"example.com/turn/observe"
)

// An Observer is told of what a driver does, by those goroutines that do it: it should
// not take long, and may not panic. What is nil is not told.
type Observer struct {
	// Attempt is told of an attempt that begins, before it is admitted. It runs under
	// the context that Attempt returns, and the function that it returns is told, once,
	// what has become of it.
	Attempt func(ctx context.Context, r *Request) (context.Context, func(Reply))
	// Waits is told of an attempt that has to wait for admission. The function that it
	// returns is called when the wait is over.
	Waits func() (over func())
	// Calls is told of the calls to both servers, unless their own configuration has
	// another.
	Calls observe.Calls
	// CloseFailed is told of each close that failed for good: the session may still be
	// open on that server. The log tells it too.
	CloseFailed func(Server)
}

func (o Observer) attempt(ctx context.Context, r *Request) (context.Context, func(Reply)) {
	if o.Attempt == nil {
		return ctx, func(Reply) {}
	}
	return o.Attempt(ctx, r)
}

func (o Observer) waits() (over func()) {
	if o.Waits == nil {
		return func() {}
	}
	return o.Waits()
}

func (o Observer) closeFailed(server Server) {
	if o.CloseFailed != nil {
		o.CloseFailed(server)
	}
}
