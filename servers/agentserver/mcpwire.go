package agentserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

var (
	errReplyTooLong = errors.New("the MCP reply is too long")
	errNoAnswer     = errors.New("what came back is no MCP answer")
	errCut          = errors.New("the MCP session was given up")
)

// An mcpWire is what lies between the SDK's client and the server's pool of
// connections, on both sides of the SDK's transport.
//
// Towards the pool it is an http.RoundTripper: it adds the access's headers,
// bounds the replies, and makes an error of every status that is not a success,
// so that one refused call does not end the session.
// Towards the client it is an mcp.Transport that keeps the last answer as it
// came: the client decodes schemas and structured content, which loses the order
// of their members and the digits of large numbers. It is used by one call at a
// time.
type mcpWire struct {
	url       string
	headers   []protocol.Pair
	transport http.RoundTripper
	limit     int64           // bytes of a reply
	life      context.Context // of all requests, those included that the SDK detaches from its caller's
	cut       context.CancelFunc

	connection mcp.Connection // the SDK's
	courtesies sync.WaitGroup // what the server is being told

	mu      sync.Mutex
	version string    // that was agreed on, "" before it was
	last    *exchange // the call that was sent last; nil when none was
}

// An exchange is one JSON-RPC call.
type exchange struct {
	id     jsonrpc.ID
	method string
	answer *jsonrpc.Response // nil: none came
	broken error             // what ended the body of the reply before it was whole
}

func newMCPWire(a *mcpAccess, s *Server) *mcpWire {
	w := &mcpWire{
		url: a.url, headers: a.headers, transport: s.config.Transport,
		limit: replyLimit(s.config.MaxOutputBytes),
	}
	w.life, w.cut = context.WithCancel(context.Background())
	return w
}

// replyLimit is how long a reply may be whose output is not too long. The output
// is in it twice with the servers that repeat it as structured content, and there
// is something around it.
func replyLimit(output int64) int64 { return 2*min(output, 1<<60) + 1<<20 }

// connect opens a session.
func (w *mcpWire) connect(ctx context.Context, name string) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: name, Version: "1"}, &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{},
		// It would send a tools/call again with what the server asked back for.
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
	})
	session, err := client.Connect(ctx, w, &mcp.ClientSessionOptions{ProtocolVersion: mcpVersion})
	if err != nil {
		return nil, w.reason(err)
	}
	return session, nil
}

// courtesy is for how long a server is told that nobody waits for it any more. The
// SDK has the same limit on its farewell to a session.
const courtesy = 5 * time.Second

// end ends a session: the server is told, for as long as ctx and a courtesy last.
// Whatever it answers, the session is gone for us.
func (w *mcpWire) end(ctx context.Context, session *mcp.ClientSession) {
	defer w.cut()
	defer context.AfterFunc(ctx, w.cut)()
	w.courtesies.Wait()
	_ = session.Close()
}

// abandon tells the server, which does not take the end of a request for that of a
// call, that nobody waits for the last one. Nobody waits for abandon either, but
// for the end of the session. (The SDK's own notification loses a race against
// it, and the tool would run on.)
func (w *mcpWire) abandon() {
	last := w.seen()
	params, err := json.Marshal(&mcp.CancelledParams{RequestID: last.id.Raw()})
	if err != nil || !last.id.IsValid() {
		return
	}
	w.courtesies.Go(func() {
		ctx, stop := context.WithTimeout(w.life, courtesy)
		defer stop()
		_ = w.connection.Write(ctx, &jsonrpc.Request{Method: cancelled, Params: params})
	})
}

const cancelled = "notifications/cancelled"

// result is the result of the call that is made, as it came. The error is a
// *jsonrpc.Error when the server answered with one, errReplyTooLong when the
// reply was that, and any other when there was no answer. Only the first has
// words of the server's.
func (w *mcpWire) result(call func() error) (rawjson.Object, error) {
	w.mu.Lock()
	w.last = nil
	w.mu.Unlock()
	err := call()
	last := w.seen()
	if last.answer == nil || last.answer.Error != nil {
		return nil, w.reason(err)
	}
	// The client is stricter than we need be, so its error does not count here.
	result, err := rawjson.ParseObject(last.answer.Result)
	if err != nil {
		return nil, errNoAnswer
	}
	return result, nil
}

// reason says why a call failed. The SDK's own texts hold the URL and the id of
// the MCP session, so they are not passed on.
func (w *mcpWire) reason(err error) error {
	last := w.seen()
	if last.answer != nil {
		var answered *jsonrpc.Error
		if errors.As(last.answer.Error, &answered) {
			return answered
		}
	}
	var inURL *url.Error
	switch {
	case errors.As(err, &inURL):
		return inURL.Err
	case last.broken != nil:
		return last.broken
	}
	return errNoAnswer
}

// seen is a copy of the last exchange.
func (w *mcpWire) seen() exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		return exchange{}
	}
	return *w.last
}

// Connect makes the SDK's connection and listens in.
func (w *mcpWire) Connect(ctx context.Context) (mcp.Connection, error) {
	transport := &mcp.StreamableClientTransport{
		Endpoint:             w.url,
		HTTPClient:           newClient(w),
		MaxRetries:           -1, // a reply that breaks off ends its call
		DisableStandaloneSSE: true,
		MaxEventSize:         -1, // the whole reply is bounded
	}
	connection, err := transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	w.connection = connection
	return &mcpTap{Connection: connection, wire: w}, nil
}

// An mcpTap is a connection whose calls and answers are noted. The SDK tells a
// connection of its own the version that was agreed on, and not this one, which
// therefore reads it itself.
type mcpTap struct {
	mcp.Connection
	wire *mcpWire
}

func (t *mcpTap) Write(ctx context.Context, message jsonrpc.Message) error {
	request, ok := message.(*jsonrpc.Request)
	if ok && request.Method == cancelled {
		return nil // abandon does that
	}
	if ok && request.IsCall() {
		t.wire.asked(request)
	}
	return t.Connection.Write(ctx, message)
}

func (t *mcpTap) Read(ctx context.Context) (jsonrpc.Message, error) {
	message, err := t.Connection.Read(ctx)
	if response, ok := message.(*jsonrpc.Response); ok && err == nil {
		t.wire.answered(response)
	}
	return message, err
}

func (w *mcpWire) asked(request *jsonrpc.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &exchange{id: request.ID, method: request.Method}
}

func (w *mcpWire) answered(response *jsonrpc.Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil || w.last.id != response.ID {
		return // of a call that was given up
	}
	w.last.answer = response
	if w.last.method != "initialize" {
		return
	}
	if result, err := rawjson.ParseObject(response.Result); err == nil {
		w.version = result.Text("protocolVersion")
	}
}

// RoundTrip sends one request of the SDK's. A JSON reply is read here and now:
// one that breaks off fails its call, where the SDK would end the session.
func (w *mcpWire) RoundTrip(request *http.Request) (*http.Response, error) {
	if w.life.Err() != nil {
		return nil, errCut
	}
	ctx, release := w.within(request.Context())
	request = request.Clone(ctx)
	last := w.dress(request.Header)
	response, err := w.follow(request)
	if err != nil {
		release()
		return nil, err
	}
	response.Body = &mcpBody{ReadCloser: response.Body, left: w.limit, release: release, failed: func(err error) { w.broke(last, err) }}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		_ = response.Body.Close()
		return nil, fmt.Errorf("the MCP endpoint answered %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	if mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); mediaType == "application/json" {
		return buffered(response)
	}
	return response, nil
}

// maxRedirects is how often a request is sent on, as in section 4 of the protocol.
const maxRedirects = 3

// follow sends a request, and sends it on where its own server says so: one that
// is mounted at "/mcp" by Starlette wants "/mcp/". No other redirect is followed:
// the headers would go with it.
func (w *mcpWire) follow(request *http.Request) (*http.Response, error) {
	for redirects := 0; ; redirects++ {
		response, err := w.transport.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		target := ownRedirect(request.URL, response)
		if target == nil || redirects == maxRedirects || request.GetBody == nil {
			return response, nil
		}
		_ = response.Body.Close()
		request = request.Clone(request.Context())
		request.URL = target
		if request.Body, err = request.GetBody(); err != nil {
			return nil, err
		}
	}
}

// ownRedirect is where a reply sends its request on to on the same server; nil when
// it does not.
func ownRedirect(from *url.URL, response *http.Response) *url.URL {
	if response.StatusCode != http.StatusTemporaryRedirect && response.StatusCode != http.StatusPermanentRedirect {
		return nil
	}
	target, err := response.Location()
	if err != nil || target.Scheme != from.Scheme || target.Host != from.Host {
		return nil
	}
	return target
}

// within is a context that ends with the wire's life as well.
func (w *mcpWire) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(w.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// dress adds the access's headers to those of the SDK, which mean something to
// the transport and stay, and returns the call that is under way.
func (w *mcpWire) dress(header http.Header) *exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	if header.Get("Mcp-Protocol-Version") == "" && w.version != "" {
		header.Set("Mcp-Protocol-Version", w.version)
	}
	for _, own := range w.headers {
		if len(header.Values(own.Name)) == 0 {
			header.Set(own.Name, own.Value)
		}
	}
	return w.last
}

func (w *mcpWire) broke(last *exchange, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last != nil && last.broken == nil {
		last.broken = err
	}
}

func buffered(response *http.Response) (*http.Response, error) {
	defer func(body io.Closer) { _ = body.Close() }(response.Body)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, nil
}

// An mcpBody is a reply of bounded length that says how it broke off.
type mcpBody struct {
	io.ReadCloser
	left    int64 // bytes until it is too long
	failed  func(error)
	release func()
}

func (b *mcpBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errReplyTooLong
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		err = errReplyTooLong
	}
	if err != nil && err != io.EOF { //nolint:errorlint // a reader's end is never wrapped
		b.failed(err)
	}
	return n, err
}

func (b *mcpBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}
