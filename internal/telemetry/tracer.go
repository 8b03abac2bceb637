package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"example.com/turn/episode"
	"example.com/turn/observe"
)

// A Tracer makes a span of each attempt, and of each call in it: an [episode.Observer].
// Spans are described in the words of OpenTelemetry and, where it has some, of NeMo Gym.
type Tracer struct {
	episode.Unobserved

	tracer trace.Tracer
	server string
}

// NewTracer makes a tracer for the environment server of a name.
func NewTracer(provider trace.TracerProvider, server string) *Tracer {
	return &Tracer{tracer: provider.Tracer("example.com/turn"), server: server}
}

type rolloutKey struct{}

// Attempt makes the span of an attempt.
func (t *Tracer) Attempt(ctx context.Context, r *episode.Request) (context.Context, func(episode.Reply)) {
	rollout := attribute.String("nemo.gym.rollout.id", r.EpisodeID.CaptureKey())
	ctx, span := t.tracer.Start(context.WithValue(ctx, rolloutKey{}, rollout), "episode", trace.WithAttributes(
		rollout,
		attribute.String("nemo.gym.server.name", t.server),
		attribute.String("nemo.gym.server.type", "environment_servers"),
		attribute.String("turn.taskset", r.TaskID.Taskset),
		attribute.String("turn.task_id", r.TaskID.TaskID),
		attribute.Int64("turn.attempt", r.EpisodeID.Attempt),
	))
	return ctx, func(reply episode.Reply) {
		outcome, stage, kind := outcomeOf(reply)
		span.SetAttributes(attribute.String("turn.outcome", outcome))
		if reply.Failure != nil {
			span.SetAttributes(attribute.String("turn.stage", stage), attribute.String("error.type", kind))
			span.SetStatus(codes.Error, reply.Failure.Reason)
		}
		span.End()
	}
}

// Call makes the span of a call.
func (t *Tracer) Call(ctx context.Context, call observe.Call) (context.Context, func(observe.Called)) {
	ctx, span := t.tracer.Start(ctx, call.What, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("http.request.method", "POST"),
		attribute.String("peer.service", call.Server),
		attribute.String("turn.stage", string(call.Stage)),
	))
	if rollout, known := ctx.Value(rolloutKey{}).(attribute.KeyValue); known { // it is none of what was left open
		span.SetAttributes(rollout)
	}
	return ctx, func(called observe.Called) {
		span.SetAttributes(attribute.Int64("http.request.body.size", called.Sent), attribute.Int64("http.response.body.size", called.Received))
		if called.Status > 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", called.Status))
		}
		if called.Sends > 1 {
			span.SetAttributes(attribute.Int("http.request.resend_count", called.Sends-1))
		}
		if called.Failed() {
			span.SetStatus(codes.Error, why(called))
		}
		span.End()
	}
}

// why is why a call failed. What a refusal says stands in its episode's span.
func why(called observe.Called) string {
	if called.Err == nil {
		return "refused"
	}
	return called.Err.Error()
}
