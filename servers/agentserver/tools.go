package agentserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
)

// A toolAccess is how a session reaches its tools: a POST to the resources
// server itself (section 2).
type toolAccess struct {
	baseURL string
	headers []protocol.Pair
	jar     *cookies.Jar // the session's copy of the resources cookies
}

// newClient is a client that follows no redirect: it would carry the session's
// cookies to wherever it is told, and turn a POST into a GET.
func newClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// call calls a tool and returns the function_call_output for the conversation.
// The error is of a call that got no answer, which is nothing that the model
// could learn from.
func (t *turn) call(ctx context.Context, call functionCall) ([]byte, error) {
	began := t.server.config.Clock()
	output, err := t.outputOf(ctx, call)
	t.session.seen.toolCall(t.id, call, output, began, t.server.config.Clock(), err)
	if err != nil {
		return nil, err
	}
	var w rawjson.ObjectWriter
	w.Text("type", "function_call_output")
	w.Text("call_id", call.id)
	w.Text("output", output.text)
	return w.End().Bytes(), nil
}

// A toolOutput is what the model gets to read. problem says why it is not what
// was asked for; "" when it is.
type toolOutput struct{ text, problem string }

func refused(problem, format string, args ...any) toolOutput {
	var w rawjson.ObjectWriter
	w.Text("error", fmt.Sprintf(format, args...))
	return toolOutput{text: string(w.End().Bytes()), problem: problem}
}

func (t *turn) outputOf(ctx context.Context, call functionCall) (toolOutput, error) {
	switch {
	case !isToolName(call.name):
		return refused("no_such_tool", "There is no tool of the name %q", call.name), nil
	case !rawjson.Valid([]byte(call.arguments)):
		return refused("invalid_arguments", "Invalid tool call arguments: %v", rawjson.Check([]byte(call.arguments))), nil
	case t.session.tools == nil:
		return toolOutput{}, requests.RefuseAs(http.StatusUnprocessableEntity, failures.AgentRunError,
			"the model called tool %s, but this agent session was given no direct HTTP tool access", call.name)
	}
	return t.post(ctx, call)
}

// isToolName reports whether a model may have that name called. It is a path on
// the resources server: one that is no plain name could leave the base URL, and
// the server's own routes would let a model score or close its own session.
func isToolName(name string) bool {
	switch "/" + name {
	case protocol.PathSeedSession, protocol.PathVerify, protocol.PathCloseSession, protocol.PathAggregateMetrics, "/mcp":
		return false
	}
	return protocol.CheckName(strings.TrimLeft(name, "_")) == nil
}

func (t *turn) post(ctx context.Context, call functionCall) (toolOutput, error) {
	tools := t.session.tools
	address := strings.TrimRight(tools.baseURL, "/") + "/" + call.name
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(call.arguments))
	if err != nil {
		return toolOutput{}, unanswered(call, err)
	}
	for _, header := range tools.headers {
		request.Header.Set(header.Name, header.Value)
	}
	request.Header.Set("Content-Type", "application/json")
	if header := tools.jar.Header(); header != "" {
		request.Header.Set("Cookie", header)
	}
	response, err := t.server.client.Do(request)
	if err != nil {
		return toolOutput{}, unanswered(call, err)
	}
	defer func() { _ = response.Body.Close() }()
	tools.jar.MergeReply(response.Header, t.server.config.Clock())
	return t.readOutput(call, response)
}

func (t *turn) readOutput(call functionCall, response *http.Response) (toolOutput, error) {
	limit := t.server.config.MaxOutputBytes
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return toolOutput{}, unanswered(call, err)
	case int64(len(text)) > limit:
		return refused("output_too_long", "The output of tool %s is longer than %d bytes", call.name, limit), nil
	case response.StatusCode >= http.StatusBadRequest:
		return toolOutput{text: string(text), problem: fmt.Sprintf("http_%d", response.StatusCode)}, nil
	}
	return toolOutput{text: string(text)}, nil
}

// unanswered is the refusal of a turn whose tool call got no whole answer. It
// does not repeat the URL, which may hold what is nobody's business.
func unanswered(call functionCall, err error) error {
	var inURL *url.Error
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	return requests.RefuseAs(http.StatusBadGateway, failures.AgentRequestFailed, "tool %s did not answer: %w", call.name, err)
}
