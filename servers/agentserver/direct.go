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
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
)

// A directAccess reaches tools by a POST to the resources server itself (section
// 2). What tools there are only that server knows, so it is asked for any.
type directAccess struct {
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

func (a *directAccess) has(string) bool { return true }

func (a *directAccess) call(ctx context.Context, s *Server, call functionCall) (toolOutput, error) {
	address := strings.TrimRight(a.baseURL, "/") + "/" + call.name
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(call.arguments))
	if err != nil {
		return toolOutput{}, unanswered(call, err)
	}
	for _, header := range a.headers {
		request.Header.Set(header.Name, header.Value)
	}
	request.Header.Set("Content-Type", "application/json")
	if header := a.jar.Header(); header != "" {
		request.Header.Set("Cookie", header)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return toolOutput{}, unanswered(call, err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := a.jar.MergeReply(response.Header, s.config.Clock()); err != nil {
		return toolOutput{}, unanswered(call, err)
	}
	return readOutput(call, response, s.config.MaxOutputBytes)
}

func readOutput(call functionCall, response *http.Response, limit int64) (toolOutput, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return toolOutput{}, unanswered(call, err)
	case int64(len(text)) > limit:
		return tooLong(call, limit), nil
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
