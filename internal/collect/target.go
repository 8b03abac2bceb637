package collect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/envclient"
	"example.com/turn/resourcesclient"
)

// A Target is what drives a run's attempts: servers by a driver of our own
// ([Servers]), or environment servers ([Environments]).
type Target interface {
	// Server is the name of the environment server that drives a taskset; it is
	// an error when there is none.
	Server(taskset string) (string, error)
	// Attempt drives one attempt and returns when it has ended.
	Attempt(ctx context.Context, r *episode.Request) episode.Reply
	// Delivery says of a failed attempt whether it reached the environment server.
	Delivery(f *failures.Failure) Delivery
	// Away reports whether an attempt failed because nobody was there to drive it, or
	// to take part in it: for now there is no point in beginning others.
	Away(f *failures.Failure) bool
	MetricsSource
}

// A Delivery says whether an episode reached its server.
type Delivery string

const (
	NotSent           Delivery = "not_sent"
	PossiblyDelivered Delivery = "possibly_delivered"
	Delivered         Delivery = "delivered"
)

// deliveryOf is the delivery of an attempt whose first call failed that way.
func deliveryOf(f *failures.Failure) Delivery {
	switch {
	case f.Unsent:
		return NotSent
	case f.Err != nil && f.Status == 0: // there was no reply
		return PossiblyDelivered
	}
	return Delivered
}

// Servers is a resources and an agent server that a driver of ours drives. To them
// the run itself is the environment server.
type Servers struct {
	Driver *episode.Driver
	Name   string // of the environment server, in every line
}

// Server is the target's name.
func (s Servers) Server(string) (string, error) { return s.Name, nil }

// Attempt has the driver run the request.
func (s Servers) Attempt(ctx context.Context, r *episode.Request) episode.Reply {
	return s.Driver.Run(ctx, r)
}

// Delivery looks at the seed: what comes after it has reached a server.
func (s Servers) Delivery(f *failures.Failure) Delivery {
	switch f.Stage {
	case failures.StageAdmission:
		return NotSent
	case failures.StageSeed:
		return deliveryOf(f)
	}
	return Delivered
}

// Away is a server of the two that cannot be reached, or a journal that cannot be
// written: without that nothing may be seeded.
func (s Servers) Away(f *failures.Failure) bool {
	return unreachable(f) || f.Kind == failures.PersistenceFailed && f.Unsent
}

func unreachable(f *failures.Failure) bool {
	return f.Kind == failures.TransportUnreachable && f.Unsent
}

// AggregateMetrics asks the resources server.
func (s Servers) AggregateMetrics(ctx context.Context, server string, body func() (io.ReadCloser, error)) ([]byte, error) {
	return Resources{s.Driver.Resources()}.AggregateMetrics(ctx, server, body)
}

// Resources is a resources server as a source of metrics, whatever environment
// server the results are of.
type Resources struct{ Client *resourcesclient.Client }

// AggregateMetrics asks the resources server.
func (r Resources) AggregateMetrics(ctx context.Context, _ string, body func() (io.ReadCloser, error)) ([]byte, error) {
	return r.Client.AggregateMetrics(ctx, body)
}

// Environments are environment servers, which anyone may have written.
type Environments struct {
	// Routes are the servers of tasksets. Default has those without a route; nil:
	// they have none.
	Routes  map[string]Environment
	Default *Environment
	// Timeout limits each attempt: the whole of POST /run. 0: nothing does.
	Timeout time.Duration
}

// An Environment is one environment server.
type Environment struct {
	Client *envclient.Client
	Name   string // in every line
}

// Server is the name of the taskset's environment server.
func (e Environments) Server(taskset string) (string, error) {
	environment, err := e.of(taskset)
	return environment.Name, err
}

func (e Environments) of(taskset string) (Environment, error) {
	if environment, routed := e.Routes[taskset]; routed {
		return environment, nil
	}
	if e.Default == nil {
		return Environment{}, fmt.Errorf("no environment server is named for taskset %q: --environment %s=URL, or one without a taskset for all others", taskset, taskset)
	}
	return *e.Default, nil
}

// Attempt posts the request to the taskset's environment server.
func (e Environments) Attempt(ctx context.Context, r *episode.Request) episode.Reply {
	environment, err := e.of(r.TaskID.Taskset)
	if err != nil { // preparing the run has looked at every row
		return episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID, Failure: failures.Of(err, failures.StageAdmission)}
	}
	if e.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, e.Timeout, &failures.Limit{Name: "episode timeout", After: e.Timeout})
		defer cancel()
	}
	return environment.Client.Run(ctx, r)
}

// Delivery looks at the one call there is. A failure that the server itself
// reports has been delivered.
func (e Environments) Delivery(f *failures.Failure) Delivery { return deliveryOf(f) }

// Away is an environment server that cannot be reached, that is shutting down, or
// for which a proxy answers.
func (e Environments) Away(f *failures.Failure) bool {
	switch {
	case f.Stage == failures.StageAdmission:
		return f.Kind == failures.Shutdown
	case f.Stage == "" && (f.Status == http.StatusBadGateway || f.Status == http.StatusServiceUnavailable):
		return true
	}
	return unreachable(f)
}

// AggregateMetrics asks the environment server of that name.
func (e Environments) AggregateMetrics(ctx context.Context, server string, body func() (io.ReadCloser, error)) ([]byte, error) {
	environments := slices.Collect(maps.Values(e.Routes))
	if e.Default != nil {
		environments = append(environments, *e.Default)
	}
	for _, environment := range environments {
		if environment.Name == server {
			return environment.Client.AggregateMetrics(ctx, body)
		}
	}
	return nil, fmt.Errorf("there are results of an environment server %s, and none is named so (--name %s, or --environment %s=URL)", server, server, server)
}
