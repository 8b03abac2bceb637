package probe

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"example.com/turn/protocol"
	"example.com/turn/servers/contract"
)

// ListTools lists the names of the tools that an access offers.
func (t *Trial) ListTools(access protocol.MCPAccess) ([]string, error) {
	s := t.run.server
	for _, header := range access.Headers {
		s.secrets.Add(header.Value)
	}
	path, query, _ := strings.Cut(strings.TrimPrefix(access.URL, s.base), "?")
	s.hideQuery(query)
	names, err := s.listTools(t.run.ctx, access)
	shown := contract.Exchange{Method: "MCP tools/list", Path: path, Reply: contract.Shorten(strings.Join(names, " "))}
	if err != nil {
		err = errors.New(s.secrets.Mask(err.Error()))
		shown.Err = err.Error()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exchanges = append(t.exchanges, shown)
	return names, err
}

func (s *server) listTools(ctx context.Context, access protocol.MCPAccess) (names []string, err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "turn-check", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:             access.URL,
		HTTPClient:           &http.Client{Transport: withHeaders{s, access.Headers}, CheckRedirect: s.client.CheckRedirect},
		MaxRetries:           -1,
		DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = session.Close() }() // the names are there by then
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return names, err
		}
		names = append(names, tool.Name)
	}
	return names, nil
}

// withHeaders adds the server's token and an access's headers to each request.
type withHeaders struct {
	server  *server
	headers []protocol.Pair
}

func (w withHeaders) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	w.server.authorize(request)
	for _, header := range w.headers {
		request.Header.Set(header.Name, header.Value)
	}
	return w.server.transport.RoundTrip(request)
}
