package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"example.com/turn/episode"
	"example.com/turn/internal/telemetry"
)

// tracing sends spans to a collector, as the variables of OpenTelemetry have it.
type tracing struct {
	provider *sdk.TracerProvider // nil: nobody wants any
}

// startTracing begins to trace if the environment says where to.
func startTracing(logger zerolog.Logger) (*tracing, error) {
	wanted, err := tracesWanted()
	if err != nil || !wanted {
		return &tracing{}, err
	}
	exporter, err := newExporter(context.Background())
	if err != nil {
		return nil, err
	}
	described, err := resource.New(context.Background(),
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "turn"), attribute.String("service.version", versionText())),
		resource.WithFromEnv(), // goes before the others
	)
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logger.Warn().Str("reason", err.Error()).Msg("traces could not be sent")
	}))
	return &tracing{sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(described))}, nil
}

// tracesWanted reports whether the environment asks for traces: it names an exporter, or
// where one sends them.
func tracesWanted() (bool, error) {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false, nil
	}
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "":
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) != "", nil
	case "otlp":
		return true, nil
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: there is no %q, only otlp and none", exporter)
	}
}

// newExporter makes the exporter of a protocol. All else that the environment says of it,
// the exporter reads itself.
func newExporter(ctx context.Context) (sdk.SpanExporter, error) {
	switch protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")); protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: there is no %q, only http/protobuf and grpc", protocol)
	}
}

// observer is that of a driver: the given one, which may be nil, and where there are to be
// traces one that traces its attempts as those of an environment server of that name.
func (t *tracing) observer(name string, other episode.Observer) episode.Observer {
	if t.provider == nil {
		return other
	}
	tracer := telemetry.NewTracer(t.provider, name)
	if other == nil {
		return tracer
	}
	return episode.Observers{other, tracer}
}

// lastSpans is how long a collector has to take the last spans.
const lastSpans = 5 * time.Second

// stop sends what is left to be sent.
func (t *tracing) stop() {
	if t.provider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}
