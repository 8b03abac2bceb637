package agentserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// DefaultMaxReplyBytes is how large a model endpoint's reply may be: a gibibyte.
const DefaultMaxReplyBytes = 1 << 30

// OpenAIConfig says where a model is served. Only URL is required.
type OpenAIConfig struct {
	// URL is the endpoint's base URL, before "/responses":
	// http://127.0.0.1:8000/v1. It is http or https, and has no user name, query
	// or fragment.
	URL string
	// Model is the name of the model that is asked, whatever the create params
	// name. "": the one that they name.
	Model string
	// Key is sent as the bearer token, and shown nowhere. "": none is sent.
	Key string
	// MaxReplyBytes is the longest reply that is read; a longer one fails the
	// turn. 0: DefaultMaxReplyBytes.
	MaxReplyBytes int64
	// Transport carries the calls. Nil: a pool of the model's own. Close gives
	// back the idle connections of either.
	Transport http.RoundTripper
	// Logger gets a line when the endpoint is found to have no Responses API. The
	// zero value discards.
	Logger zerolog.Logger
	// Clock tells the time, from which a Retry-After that is a date is counted.
	// Nil: time.Now.
	Clock func() time.Time
}

// Validate reports everything that is wrong with the config. It shows neither the
// key nor a URL that may hold a password.
func (c OpenAIConfig) Validate() error {
	var errs []error
	wrong := func(text string) { errs = append(errs, errors.New(text)) }
	u, err := url.Parse(c.URL)
	if err != nil {
		u = &url.URL{}
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		wrong("want an absolute http or https URL such as http://127.0.0.1:8000/v1")
	}
	if u.User != nil {
		wrong("the URL must not hold a user name or password")
	}
	if strings.ContainsAny(c.URL, "?#") { // also an empty one, for paths are put behind it
		wrong("the URL must not have a query or a fragment")
	}
	if strings.ContainsFunc(c.Key, unicode.IsControl) {
		wrong("the key has characters that a header cannot carry")
	}
	if c.MaxReplyBytes < 0 {
		wrong("MaxReplyBytes is negative")
	}
	return errors.Join(errs...)
}

func (c OpenAIConfig) withDefaults() OpenAIConfig {
	if c.MaxReplyBytes == 0 {
		c.MaxReplyBytes = DefaultMaxReplyBytes
	}
	if c.Transport == nil {
		c.Transport = pool.General(nil)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

// An OpenAI is a model behind an endpoint that speaks OpenAI's API, that of OpenAI
// or of the many servers that do as it does. It is safe for concurrent use.
//
// The endpoint is asked by the Responses API: the create params go there as they
// came, and its reply comes back as it came. One that does not know that API is
// asked by Chat Completions from then on, with the params and the reply converted.
// What Chat Completions cannot say is refused or left out, as [OpenAI.Respond] has
// it.
//
// Each round is one call without a time limit, and is not repeated: who drives the
// agent owns the retries, and learns from the refusal whether one can help. Nothing
// is taken from the environment, neither a key nor a URL nor a proxy.
type OpenAI struct {
	config   OpenAIConfig
	http     *http.Client
	options  []option.RequestOption
	secrets  *failures.Secrets
	chatOnly atomic.Bool // the endpoint has no Responses API
}

// NewOpenAI makes a model. The error names everything that is wrong with the
// config.
func NewOpenAI(config OpenAIConfig) (*OpenAI, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("model endpoint: %w", err)
	}
	m := &OpenAI{config: config.withDefaults(), secrets: &failures.Secrets{}}
	m.secrets.Add(config.Key)
	m.http = newClient(m.config.Transport)
	m.options = []option.RequestOption{
		option.WithBaseURL(config.URL),
		option.WithHTTPClient(m.http),
		option.WithMaxRetries(0),
		option.WithMiddleware(m.bounded),
	}
	if config.Key != "" {
		m.options = append(m.options, option.WithAPIKey(config.Key))
	}
	return m, nil
}

// Close gives back idle connections. The model still answers afterwards.
func (m *OpenAI) Close() { m.http.CloseIdleConnections() }

// The two ways to ask, as paths behind the base URL.
const (
	pathResponses = "responses"
	pathChat      = "chat/completions"
)

// Respond asks the endpoint once.
//
// An error is a *[requests.Refusal] with the endpoint's own words. A status that may
// pass (408, 425, 429 and from 500 on) is answered with itself, its Retry-After
// included; a connection that failed with 502. Any other status is answered with
// 424, which is final: were it answered with itself, a wrong key (401) or an unknown
// model (404) would read as if the agent server had refused its caller, or had no
// such path.
//
// Through Chat Completions, these are refused with 422, since an answer without them
// would be another one: items other than messages, function calls, their outputs and
// reasoning; content other than text and images by URL; tools and choices of tools
// that are not functions; conversation, previous_response_id and prompt. Reasoning
// items and what has no counterpart and does not change the question are left out
// (store, include, truncation, metadata and the like). Members that are not of the
// Responses API (seed, stop, top_k, …) go as they are.
func (m *OpenAI) Respond(ctx context.Context, params json.RawMessage) (json.RawMessage, error) {
	answer, err := m.answer(ctx, params)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx) // whatever broke first, that is why
	}
	return answer, err
}

func (m *OpenAI) answer(ctx context.Context, params []byte) ([]byte, error) {
	params, err := m.named(params)
	if err != nil {
		return nil, err
	}
	if m.chatOnly.Load() {
		answer, err := m.chat(ctx, params)
		return answer, m.failed("POST /"+pathChat, err)
	}
	answer, err := m.post(ctx, pathResponses, params)
	if !isUnknownPath(err) {
		return answer, m.failed("POST /"+pathResponses, err)
	}
	answer, err = m.chat(ctx, params)
	switch {
	case isUnknownPath(err): // it has neither, or the model is what it does not have
		return nil, m.failed("POST /"+pathResponses+" and POST /"+pathChat+m.baseHint(), err)
	case err == nil && !m.chatOnly.Swap(true):
		m.config.Logger.Info().Msg("the model endpoint has no Responses API: it is asked by Chat Completions from now on")
	}
	return answer, m.failed("POST /"+pathChat, err)
}

// baseHint is what may be wrong with a base URL behind which nothing is.
func (m *OpenAI) baseHint() string {
	if strings.HasSuffix(strings.TrimRight(m.config.URL, "/"), "/v1") {
		return ""
	}
	return " (most base URLs end in /v1, this one does not)"
}

// named is the params with the model's name in them.
func (m *OpenAI) named(params []byte) ([]byte, error) {
	if m.config.Model == "" {
		return params, nil
	}
	object, err := rawjson.ParseObject(params)
	if err != nil {
		return nil, requests.Read(params, "body").Err()
	}
	return encode(with(object, "model", rawjson.AppendText(nil, m.config.Model))).Bytes(), nil
}

// chat asks by Chat Completions.
func (m *OpenAI) chat(ctx context.Context, params []byte) ([]byte, error) {
	question, err := chatParams(params)
	if err != nil {
		return nil, err
	}
	completion, err := m.post(ctx, pathChat, question)
	if err != nil {
		return nil, err
	}
	return responseOf(completion)
}

// post makes one call. Body and reply are bytes, which the library leaves as they
// are.
func (m *OpenAI) post(ctx context.Context, path string, body []byte) ([]byte, error) {
	// Not openai.NewClient, which also reads a key, a URL, an organization and
	// headers from OPENAI_… variables; and no field of m, by which every program
	// with an agent server would keep all the services that a client has, 24 MB.
	client := openai.Client{Options: m.options}
	var reply []byte
	if err := client.Post(ctx, path, body, &reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// maxRefusalBytes is how much of a refusing reply is read.
const maxRefusalBytes = 1 << 20

// bounded stands between the library and the connection, because the library reads
// replies of any length, and takes a refusing one apart before its caller sees it.
func (m *OpenAI) bounded(request *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	response, err := next(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 200 && response.StatusCode <= 299 {
		response.Body = http.MaxBytesReader(nil, response.Body, m.config.MaxReplyBytes)
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	refusal := &modelRefusal{status: response.StatusCode, header: response.Header}
	if response.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection, and may never end
		refusal.body, err = io.ReadAll(io.LimitReader(response.Body, maxRefusalBytes))
	}
	if err != nil {
		return nil, err
	}
	return nil, refusal
}

// A modelRefusal is a reply of the endpoint that is not a success.
type modelRefusal struct {
	status int
	header http.Header
	body   []byte
}

func (r *modelRefusal) Error() string { return fmt.Sprintf("status %d", r.status) }

// isUnknownPath reports whether an endpoint seems not to have what it was asked. It
// may also be a model that it does not have: many answer both with a plain 404.
func isUnknownPath(err error) bool {
	var refusal *modelRefusal
	if !errors.As(err, &refusal) {
		return false
	}
	switch refusal.status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return !refusal.namesModel()
	}
	return false
}

// namesModel reports whether it is the model that is refused, in the form that
// OpenAI has for it.
func (r *modelRefusal) namesModel() bool {
	object, err := rawjson.ParseObject(r.body)
	if err != nil {
		return false
	}
	if inner, err := rawjson.ParseObject(object.Present("error")); err == nil {
		object = inner
	}
	return object.Text("code") == "model_not_found" || object.Text("param") == "model"
}

// failed is an error of a call as the turn's caller gets it; nil when there is
// none.
func (m *OpenAI) failed(what string, err error) error {
	var (
		invalid  requests.Invalid
		ours     *requests.Refusal
		refusal  *modelRefusal
		tooLarge *http.MaxBytesError
	)
	call := failures.Call{Stage: failures.StageAgent, Server: "the model endpoint", What: what, Secrets: m.secrets}
	switch {
	case err == nil || errors.As(err, &invalid) || errors.As(err, &ours):
		return err
	case errors.As(err, &refusal):
		return refusalOf(failures.Refused(call, refusal.status, refusal.header, refusal.body, m.config.Clock()))
	case errors.As(err, &tooLarge):
		long := failures.NotContract(call, fmt.Sprintf("it is longer than %d bytes", tooLarge.Limit))
		return requests.RefuseAs(http.StatusInternalServerError, failures.AgentRunError, "%w", long)
	}
	return requests.RefuseAs(http.StatusBadGateway, failures.AgentRequestFailed, "%w", failures.Broken(call, err, false, nil))
}

func refusalOf(f *failures.Failure) *requests.Refusal {
	status := f.Status
	if f.Terminal {
		status = http.StatusFailedDependency
	}
	return &requests.Refusal{Status: status, Kind: f.Kind, Reason: f.Reason, RetryAfter: f.RetryAfter, Err: f}
}
