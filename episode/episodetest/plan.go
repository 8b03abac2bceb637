package episodetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Plan says what is done to each call. It is asked when a call's head has come,
// and before its body is read, so that the body is not there to look at; by many
// calls at the same time. It may call the proxy's methods, save Close.
//
// A plan that has a method Validate() error is asked whether it is right before it
// is used.
type Plan interface {
	// Fault returns what is done to a call, of which Route, Nth, Method and Path
	// are known. One that is not valid is not done: the proxy answers 500 and says
	// why, there and in [Call].Err.
	Fault(call Call) Fault
}

// A PlanFunc is a function as a plan.
type PlanFunc func(Call) Fault

// Fault calls the function.
func (f PlanFunc) Fault(call Call) Fault { return f(call) }

// A Script is a plan written by hand: the faults of each route's calls, in the order
// of the calls. Those after them pass, as do those of other routes.
type Script map[Route][]Fault

// Fault is the next one of the call's route.
func (s Script) Fault(call Call) Fault {
	faults := s[call.Route]
	if call.Nth > len(faults) {
		return Fault{}
	}
	return faults[call.Nth-1]
}

// Validate reports every route that there is not and every fault that is not valid.
func (s Script) Validate() error {
	var problems []error
	for _, route := range slices.Sorted(maps.Keys(s)) {
		if !isRoute(route) {
			problems = append(problems, fmt.Errorf("a script has no route %q", route))
		}
		for i, fault := range s[route] {
			if err := fault.Validate(); err != nil {
				problems = append(problems, fmt.Errorf("fault %d of %s: %w", i+1, route, err))
			}
		}
	}
	return errors.Join(problems...)
}

func validate(plan Plan) error {
	if p, ok := plan.(interface{ Validate() error }); ok {
		return p.Validate()
	}
	return nil
}
