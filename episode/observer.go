package episode

import (
	"context"

	"example.com/turn/observe"
)

// An Observer is told of what a driver does, by the goroutines that do it: it should not
// take long, and may not panic. One that embeds [Unobserved] has only those methods that
// it wants.
type Observer interface {
	// Attempt is told of an attempt that begins, before it is admitted. It runs under
	// the context that Attempt returns, and the function that it returns is told, once,
	// what has become of it.
	Attempt(ctx context.Context, r *Request) (context.Context, func(Reply))
	// Waits is told of an attempt that has to wait for admission. The function that it
	// returns is called when the wait is over.
	Waits() (over func())
	// Call is told of a call to either server, unless that server's own configuration
	// has another [observe.Calls], which it is itself.
	Call(ctx context.Context, call observe.Call) (context.Context, func(observe.Called))
	// CloseFailed is told of a close that failed for good: the session may still be
	// open on that server. The log tells it too.
	CloseFailed(server Server)
}

// Unobserved is an [Observer] that does nothing.
type Unobserved struct{}

func (Unobserved) Attempt(ctx context.Context, _ *Request) (context.Context, func(Reply)) {
	return ctx, func(Reply) {}
}

func (Unobserved) Waits() (over func()) { return func() {} }

func (Unobserved) Call(ctx context.Context, _ observe.Call) (context.Context, func(observe.Called)) {
	return ctx, func(observe.Called) {}
}

func (Unobserved) CloseFailed(Server) {}

// Observers tell each of them: the first one first of what begins, and last of what ends.
// A context that one of them returns is the next one's.
type Observers []Observer

func (o Observers) Attempt(ctx context.Context, r *Request) (context.Context, func(Reply)) {
	ends := make([]func(Reply), len(o))
	for i, observer := range o {
		ctx, ends[i] = observer.Attempt(ctx, r)
	}
	return ctx, func(reply Reply) {
		for i := range ends {
			ends[len(ends)-1-i](reply)
		}
	}
}

func (o Observers) Waits() (over func()) {
	overs := make([]func(), len(o))
	for i, observer := range o {
		overs[i] = observer.Waits()
	}
	return func() {
		for i := range overs {
			overs[len(overs)-1-i]()
		}
	}
}

func (o Observers) Call(ctx context.Context, call observe.Call) (context.Context, func(observe.Called)) {
	ends := make([]func(observe.Called), len(o))
	for i, observer := range o {
		ctx, ends[i] = observer.Call(ctx, call)
	}
	return ctx, func(called observe.Called) {
		for i := range ends {
			ends[len(ends)-1-i](called)
		}
	}
}

func (o Observers) CloseFailed(server Server) {
	for _, observer := range o {
		observer.CloseFailed(server)
	}
}
