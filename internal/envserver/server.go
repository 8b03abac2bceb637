package envserver

import (
	"context"
	"crypto/rand"
	"errors"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/propagation"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/httpserve"
	"example.com/turn/internal/rawjson"
	"example.com/turn/internal/telemetry"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

// Compat is the NeMo Gym whose failure type replies are written for.
type Compat string

const (
	Compat07   Compat = "0.7"  // refuses a failure with fields that it does not know
	CompatMain Compat = "main" // has observations, trajectory and cleanup error in it
)

// A Config says what the server serves.
type Config struct {
	Driver *episode.Driver
	// Policy says which failures go round again within one request.
	Policy retry.Policy
	// Compat: "" is Compat07.
	Compat Compat
	// Legacy takes flat rows too. Rules are how they become requests.
	Legacy bool
	Rules  episode.RowRules
	// Metrics count requests, and answer GET /metrics. They count what the driver does
	// when they are its observer. Nil: new ones.
	Metrics *telemetry.Metrics
	// Token is what callers have to show (Authorization: Bearer), save those that ask
	// whether the server is alive or ready. It is secret. "": anyone may call.
	Token protocol.Token
	// Ready is closed when episodes may begin: until then requests to /run wait, and
	// readiness is off. Nil: at once.
	Ready <-chan struct{}
	// Grace is how long episodes under way may go on when the server drains. 0:
	// not at all.
	Grace  time.Duration
	Logger zerolog.Logger
}

// A Server is an environment server. It is an http.Handler.
type Server struct {
	config  Config
	handler http.Handler

	// episodes ends, with a cause, when episodes under way are given up.
	episodes context.Context
	giveUp   context.CancelCauseFunc

	mu       sync.Mutex
	draining bool
	underWay int            // requests to /run
	running  sync.WaitGroup // the same; none is added once draining
}

// New makes a server.
func New(config Config) *Server {
	if config.Metrics == nil {
		config.Metrics = telemetry.New()
	}
	if config.Ready == nil {
		at := make(chan struct{})
		close(at)
		config.Ready = at
	}
	s := &Server{config: config}
	s.episodes, s.giveUp = context.WithCancelCause(context.Background())
	s.handler = forCallersWith(config.Token, s.routes())
	return s
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+protocol.PathRun, s.run)
	mux.HandleFunc("POST "+protocol.PathAggregateMetrics, s.aggregateMetrics)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", s.config.Metrics.Handler())
	for _, path := range alivePaths {
		mux.HandleFunc("GET "+path, s.alive)
		mux.HandleFunc(path, methodNotAllowed("GET, HEAD"))
	}
	for _, path := range []string{"/readyz", "/metrics"} {
		mux.HandleFunc(path, methodNotAllowed("GET, HEAD"))
	}
	for _, path := range []string{protocol.PathRun, protocol.PathAggregateMetrics} {
		mux.HandleFunc(path, methodNotAllowed(http.MethodPost))
	}
	mux.HandleFunc("/", notFound)
	return mux
}

var alivePaths = []string{"/{$}", "/health", "/healthz", "/livez"}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Serve answers requests on the listener until ctx ends; then it drains, and
// returns nil when it has drained. When the listener fails it gives no grace and
// returns that error. It closes the listener in any case. To stop without a grace,
// call [Server.Abort] meanwhile.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := httpserve.New(s, s.config.Logger)
	served := make(chan error, 1)
	go func() { served <- server.Serve(httpserve.Listener(listener, s.config.Logger)) }()
	var broken error
	select {
	case broken = <-served:
		s.Abort()
	case <-ctx.Done():
	}
	s.Drain()
	// Every episode has ended; callers have a moment to take their replies.
	ctx, cancel := context.WithTimeout(context.Background(), lastReplies)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // those left do not read, or never finish what they send
	}
	if broken == nil {
		<-served
	}
	return broken
}

// lastReplies is how long callers have to take their replies before the
// connections are closed.
const lastReplies = 5 * time.Second

// Drain turns readiness off and lets no episode begin. It returns when those under
// way have ended: by themselves within the grace, or cancelled after it.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	running := s.underWay
	s.mu.Unlock()
	s.config.Driver.Drain()
	s.config.Logger.Info().Int("running", running).Str("grace", s.config.Grace.String()).Msg("draining: no new episode begins; a second signal ends at once")
	grace := time.AfterFunc(s.config.Grace, s.Abort)
	defer grace.Stop()
	s.running.Wait()
}

// Abort cancels the episodes under way. Their closes still run.
func (s *Server) Abort() {
	s.giveUp(&failures.Stop{Kind: failures.Shutdown, Reason: "the environment server is shutting down"})
}

// begin counts a request to /run as running, unless the server drains.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.underWay++
	s.running.Add(1)
	return true
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay--
	s.running.Done()
}

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	id := requestID(r.Header)
	w.Header().Set(requestIDHeader, id)
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	s.config.Metrics.Received(len(body))
	request, row, err := s.parse(body)
	if err != nil {
		refuse(w, err)
		return
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	reply := s.drive(episode.WithRequestID(ctx, id), request)
	if reply == nil {
		// Returning would send an empty 200, which one that has closed only its
		// half of the connection would take for the answer.
		panic(http.ErrAbortHandler)
	}
	out := s.body(reply, row)
	s.config.Metrics.Sent(out.Len())
	writeJSON(w, http.StatusOK, out)
}

const requestIDHeader = "X-Request-Id"

// maxRequestID is how long a request's id may be, in bytes, that its caller gives it.
const maxRequestID = 128

// requestID is what a request is called in the log: as its caller calls it, if that is
// one line and not too long, else by a name that it is given here.
func requestID(header http.Header) string {
	id := header.Get(requestIDHeader)
	if id == "" || len(id) > maxRequestID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return rand.Text()
	}
	return id
}

func (s *Server) body(reply *episode.Reply, row bool) episode.Body {
	switch {
	case row:
		return reply.LegacyBody(s.config.Rules.Agent)
	case s.config.Compat == CompatMain:
		return reply.Body((*failures.Failure).MainBody)
	}
	return reply.Body(nil)
}

func (s *Server) parse(body []byte) (r *episode.Request, row bool, err error) {
	if s.config.Legacy {
		return episode.ParseLegacyRequest(body, s.config.Rules)
	}
	r, err = episode.ParseRequest(body)
	return r, false, err
}

// drive runs the episode for as long as the caller waits for it, and returns nil when
// the caller has gone. A panic of what stands around the driver is the episode's
// failure, as one within it is.
func (s *Server) drive(caller context.Context, r *episode.Request) (reply *episode.Reply) {
	select {
	case <-s.config.Ready:
	case <-s.config.Driver.Draining():
	case <-caller.Done():
		return nil
	}
	if !s.begin() {
		return failed(r, failures.New(failures.StageAdmission, failures.Shutdown, "the environment server is shutting down"))
	}
	defer s.end()
	defer func() {
		if bug := recover(); bug != nil {
			reply = failed(r, s.config.Driver.Unhandled(bug))
		}
	}()
	defer s.config.Metrics.Began()()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	defer cancel(nil)
	defer context.AfterFunc(s.episodes, func() { cancel(context.Cause(s.episodes)) })()
	defer context.AfterFunc(caller, func() {
		cancel(&failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"})
	})()
	reply = s.attempts(ctx, r)
	if caller.Err() != nil {
		return nil
	}
	return reply
}

// attempts is the last of the request's attempts.
func (s *Server) attempts(ctx context.Context, r *episode.Request) *episode.Reply {
	last := &episode.Reply{}
	attempts := 0
	for attempt := range episode.Attempts(ctx, s.config.Driver, r, s.config.Policy) {
		*last = attempt.Reply
		if attempts++; attempts > 1 {
			s.config.Metrics.Redispatched()
		}
	}
	last.EpisodeID = r.EpisodeID
	return last
}

func failed(r *episode.Request, f *failures.Failure) *episode.Reply {
	return &episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID, Failure: f}
}

// aggregateMetrics forwards the body unread to the resources server. Its reply is
// passed through as it came, unless the fault is not the request's.
func (s *Server) aggregateMetrics(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	reply, err := s.config.Driver.Resources().ForwardMetrics(r.Context(), body)
	if err != nil {
		writeDetail(w, http.StatusBadGateway, err.Error())
		return
	}
	w.Header()["Content-Type"] = nil // where it has none, net/http would guess one
	if reply.ContentType != "" {
		w.Header().Set("Content-Type", reply.ContentType)
	}
	if reply.ContentEncoding != "" {
		w.Header().Set("Content-Encoding", reply.ContentEncoding)
	}
	w.WriteHeader(reply.Status)
	_, _ = w.Write(reply.Body)
}

func (s *Server) alive(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, http.StatusOK, "ok")
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		writeStatus(w, http.StatusServiceUnavailable, "draining")
		return
	}
	select {
	case <-s.config.Ready:
		writeStatus(w, http.StatusOK, "ok")
	default:
		writeStatus(w, http.StatusServiceUnavailable, "starting")
	}
}

// readBody reads a JSON request. What is not sent as application/json is refused:
// a web page can post to a server on loopback, but not with that type.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) || media != "application/json" {
		writeDetail(w, http.StatusUnsupportedMediaType, "the body should be sent as application/json")
		return nil, false
	}
	body, err = httpcall.ReadAll(r.Body, r.ContentLength, MaxRequestBytes)
	if errors.Is(err, httpcall.ErrTooLarge) {
		w.Header().Set("Connection", "close")
		writeDetail(w, http.StatusRequestEntityTooLarge, "the body is larger than "+strconv.Itoa(MaxRequestBytes)+" bytes")
		return nil, false
	}
	if err != nil { // if the caller is still there, it does not speak HTTP
		writeDetail(w, http.StatusBadRequest, "the body did not come whole")
		return nil, false
	}
	return body, true
}

// MaxRequestBytes is how large a request may be: a gibibyte.
const MaxRequestBytes = 1 << 30

func refuse(w http.ResponseWriter, err error) {
	var invalid *episode.InvalidRequest
	if errors.As(err, &invalid) {
		writeJSON(w, http.StatusUnprocessableEntity, invalid.Body())
		return
	}
	writeDetail(w, http.StatusBadRequest, err.Error())
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	writeDetail(w, http.StatusNotFound, "Not Found")
}

func methodNotAllowed(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", allowed)
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
	}
}

func writeStatus(w http.ResponseWriter, status int, text string) {
	var object rawjson.ObjectWriter
	object.Text("status", text)
	writeJSON(w, status, object.End())
}

func writeDetail(w http.ResponseWriter, status int, text string) {
	var object rawjson.ObjectWriter
	object.Text("detail", text)
	writeJSON(w, status, object.End())
}

// writeJSON writes a reply whose caller may have gone meanwhile, which is the
// caller's business.
func writeJSON(w http.ResponseWriter, status int, body rawjson.Body) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	_, _ = body.WriteTo(w)
}
