//go:build unix

package main

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"

	"example.com/turn/internal/scripted"
)

// A span is one that was sent, with its ids in hex.
type span struct {
	Name, Trace, ID, Parent string
	Kind                    otlp.Span_SpanKind
	Status                  otlp.Status_StatusCode
	Message                 string
	Attributes              map[string]any
}

// spans keep what is sent to an OTLP receiver, which answers over HTTP and over gRPC.
type spans struct {
	collector.UnimplementedTraceServiceServer

	mu       sync.Mutex
	sent     []span
	resource map[string]any
}

func (s *spans) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, from := range request.GetResourceSpans() {
		s.resource = attributes(from.GetResource().GetAttributes())
		for _, scope := range from.GetScopeSpans() {
			for _, sent := range scope.GetSpans() {
				s.sent = append(s.sent, span{
					Name:  sent.GetName(),
					Trace: hex.EncodeToString(sent.GetTraceId()), ID: hex.EncodeToString(sent.GetSpanId()), Parent: hex.EncodeToString(sent.GetParentSpanId()),
					Kind:   sent.GetKind(),
					Status: sent.GetStatus().GetCode(), Message: sent.GetStatus().GetMessage(),
					Attributes: attributes(sent.GetAttributes()),
				})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func attributes(sent []*common.KeyValue) map[string]any {
	values := map[string]any{}
	for _, attribute := range sent {
		switch value := attribute.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			values[attribute.GetKey()] = value.StringValue
		case *common.AnyValue_IntValue:
			values[attribute.GetKey()] = value.IntValue
		default:
			values[attribute.GetKey()] = attribute.GetValue().String()
		}
	}
	return values
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	text, err := io.ReadAll(body)
	request := &collector.ExportTraceServiceRequest{}
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(text, request) != nil {
		http.Error(w, "not spans", http.StatusBadRequest)
		return
	}
	reply, _ := s.Export(r.Context(), request)
	out, _ := proto.Marshal(reply)
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(out)
}

// overHTTP and overGRPC are where the receiver is.
func (s *spans) overHTTP(t *testing.T) string {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL
}

func (s *spans) overGRPC(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return "http://" + listener.Addr().String()
}

// named are the spans of a name, in the order in which they ended.
func (s *spans) named(name string) []span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.sent), func(sent span) bool { return sent.Name != name })
}

// One span is made of each attempt and, as its children, one of each call. They belong to
// the caller's trace, and the servers are called under the calls' spans.
func TestServeTraces(t *testing.T) {
	const caller, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, way := range []struct {
		name     string
		receiver func(*spans, *testing.T) string
		env      string
	}{
		{"over HTTP", (*spans).overHTTP, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"over gRPC", (*spans).overGRPC, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
	} {
		t.Run(way.name, func(t *testing.T) {
			servers, received := scripted.New(t), &spans{}
			servers.Play(scripted.Script{scripted.Verify: {{Drop: scripted.AfterRead}, {Status: http.StatusServiceUnavailable}, {Default: true}}})
			command := exec.Command(os.Args[0], "serve", "--listen", "localhost:0", "--resources", servers.ResourcesURL, "--agent", servers.AgentURL, "--name", "weather_env", "--max-attempts", "2", "--retry-backoff", "1ms")
			command.Env = []string{way.env + "=" + way.receiver(received, t), "OTEL_RESOURCE_ATTRIBUTES=deployment.environment=test"}
			if way.name == "over gRPC" {
				command.Env = append(command.Env, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
			}
			p := startProgram(t, command)
			url := "http://" + p.awaitLog(t, "listening")["address"].(string)
			request, err := http.NewRequestWithContext(soon(t), http.MethodPost, url+"/run", strings.NewReader(episodeRequest))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Traceparent", "00-"+caller+"-"+parent+"-01")
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			p.signal(t, syscall.SIGTERM)
			if status := p.awaitExit(t); status.ExitStatus() != 0 {
				t.Fatalf("exit status %d, want 0", status.ExitStatus())
			}

			if got := received.resource; got["service.name"] != "turn" || got["deployment.environment"] != "test" || got["service.version"] == "" {
				t.Errorf("the spans are of %v", got)
			}
			episodes := received.named("episode")
			if len(episodes) != 2 {
				t.Fatalf("%d spans of attempts, want 2: %+v", len(episodes), episodes)
			}
			common := map[string]any{
				"nemo.gym.server.name": "weather_env", "nemo.gym.server.type": "environment_servers",
				"turn.taskset": "weather", "turn.task_id": "t-7",
			}
			failed, succeeded := episodes[0], episodes[1]
			wantSpan(t, failed, span{Name: "episode", Trace: caller, Parent: parent, Kind: otlp.Span_SPAN_KIND_INTERNAL, Status: otlp.Status_STATUS_CODE_ERROR, Message: failed.Message}, common, map[string]any{
				"nemo.gym.rollout.id": "7-0", "turn.attempt": int64(0), "turn.outcome": "failure", "turn.stage": "verification", "error.type": "verifier_error",
			})
			if !strings.Contains(failed.Message, "POST /verify with 503") {
				t.Errorf("the reason is %q", failed.Message)
			}
			wantSpan(t, succeeded, span{Name: "episode", Trace: caller, Parent: parent, Kind: otlp.Span_SPAN_KIND_INTERNAL}, common, map[string]any{
				"nemo.gym.rollout.id": "7-0-a1", "turn.attempt": int64(1), "turn.outcome": "result",
			})
			wantCalls(t, received, servers, episodes)
			verify := received.named("POST /verify")[0]
			wantSpan(t, verify, span{Name: "POST /verify", Trace: caller, Parent: failed.ID, Kind: otlp.Span_SPAN_KIND_CLIENT, Status: otlp.Status_STATUS_CODE_ERROR, Message: "refused"}, nil, map[string]any{
				"nemo.gym.rollout.id": "7-0", "http.request.method": "POST", "peer.service": "resources server", "turn.stage": "verification",
				"http.response.status_code": int64(503), "http.request.resend_count": int64(1),
				"http.request.body.size": verify.Attributes["http.request.body.size"], "http.response.body.size": verify.Attributes["http.response.body.size"],
			})
		})
	}
}

func wantSpan(t *testing.T, got, want span, attributes ...map[string]any) {
	t.Helper()
	want.ID, want.Attributes = got.ID, map[string]any{}
	for _, some := range attributes {
		for name, value := range some {
			want.Attributes[name] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the span (-want +got):\n%s", diff)
	}
}

// wantCalls checks that each request came under the span of its call, which is a child of
// one of the episodes'.
func wantCalls(t *testing.T, received *spans, servers *scripted.Servers, episodes []span) {
	t.Helper()
	sends := map[string]int{}
	for _, call := range servers.Calls() {
		trace, id, _ := strings.Cut(strings.TrimPrefix(call.Header.Get("Traceparent"), "00-"), "-")
		id, _, _ = strings.Cut(id, "-")
		name := "POST " + call.Path
		if call.Route == scripted.Responses {
			name = "POST /v1/responses" // without what differs from rollout to rollout
		}
		at := slices.IndexFunc(received.named(name), func(s span) bool { return s.ID == id && s.Trace == trace })
		if at < 0 {
			t.Errorf("%s came under %q, which is no span of its own", name, call.Header.Get("Traceparent"))
			continue
		}
		parent := received.named(name)[at].Parent
		if !slices.ContainsFunc(episodes, func(s span) bool { return s.ID == parent }) {
			t.Errorf("%s is a child of %s, which is no episode", name, parent)
		}
		sends[name]++
	}
	want := map[string]int{"POST /seed_session": 2, "POST /v1/agent_sessions": 2, "POST /v1/responses": 2, "POST /v1/agent_sessions/close": 2, "POST /verify": 3, "POST /close_session": 2}
	if diff := cmp.Diff(want, sends); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Without a receiver nothing is traced; the caller's trace goes on to the servers as it
// came.
func TestWithoutTracesTheCallersGoOn(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	servers := scripted.New(t)
	for name, sent := range map[string]string{"a trace": traceparent, "none": "", "what is none": "00-xyz-1-01"} {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, servers)
			before := len(servers.Calls())
			request, err := http.NewRequestWithContext(soon(t), http.MethodPost, url+"/run", strings.NewReader(episodeRequest))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Traceparent", sent)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			want := ""
			if sent == traceparent {
				want = traceparent
			}
			for _, call := range servers.Calls()[before:] {
				if got := call.Header.Get("Traceparent"); got != want {
					t.Errorf("%s came under %q, want %q", call.Path, got, want)
				}
			}
		})
	}
}

// A run traces too, one trace an attempt.
func TestARunTraces(t *testing.T) {
	received := &spans{}
	command := exec.Command(os.Args[0], "run", "../../testdata/weather.jsonl", "-o", filepath.Join(t.TempDir(), "rollouts.jsonl"), "--embedded", "weather", "--limit", "3", "--quiet")
	command.Env = []string{"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + received.overHTTP(t) + "/v1/traces"}
	p := startProgram(t, command)
	if status := p.awaitExit(t); status.ExitStatus() != 0 {
		t.Fatalf("exit status %d, want 0", status.ExitStatus())
	}
	traces := map[string]bool{}
	for _, episode := range received.named("episode") {
		traces[episode.Trace] = true
	}
	if len(traces) != 3 || len(received.named("POST /verify")) != 3 {
		t.Errorf("%d traces with %d verifications, want 3 and 3", len(traces), len(received.named("POST /verify")))
	}
}
