package envclient

import (
	"context"
	"io"
	"net/http"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

// A Config says which environment server is called, and how.
type Config struct {
	// URL is the server's base URL, such as http://127.0.0.1:8002.
	URL string
	// Name names the server in failures. "": it has none there.
	Name string
	// Transport makes the connections. Nil: a pool of its own.
	Transport http.RoundTripper
	// Token is shown to the server with every call (Authorization: Bearer), and to
	// nobody else. It is secret. "": none is.
	Token protocol.Token
	// Resend bounds the re-sends of a call that found no connection.
	Resend retry.Resend
	// MaxReplyBytes bounds the body of a reply. 0: a gibibyte.
	MaxReplyBytes int64
	// Logger gets a warning when connections begin to fail, and when the token
	// goes there in the open; the zero value discards.
	Logger zerolog.Logger
}

func (c Config) call() httpcall.Config {
	server := "environment server"
	if c.Name != "" {
		server += " " + c.Name
	}
	return httpcall.Config{
		URL:           c.URL,
		Server:        server,
		Transport:     c.Transport,
		Token:         c.Token,
		Resend:        c.Resend,
		MaxReplyBytes: c.MaxReplyBytes,
		Logger:        c.Logger,
	}
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error { return c.call().Validate() }

// A Client calls one environment server. It is safe for concurrent use.
type Client struct{ http *httpcall.Client }

// New makes a client. The configuration must be valid.
func New(config Config) *Client { return &Client{http: httpcall.New(config.call())} }

// Run has the server drive one attempt (section 3). When ctx ends the connection is
// closed, by which the server knows that nobody waits any more.
//
// The failure of a call that got no episode reply has no stage. [failures.Failure]
// says by Unsent that the server knows nothing of the attempt.
func (c *Client) Run(ctx context.Context, r *episode.Request) episode.Reply {
	reply := episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID}
	call := &httpcall.Call{What: "POST " + protocol.PathRun, Path: protocol.PathRun, Rule: retry.Once, Body: r.RunBody()}
	body, err := c.http.Post(ctx, call)
	if err != nil {
		reply.Failure = failures.Of(err, "")
		return reply
	}
	parsed, err := episode.ParseReply(body, r)
	if err != nil {
		reply.Failure = failures.NotContract(c.http.Failed(call), err.Error())
		return reply
	}
	if parsed.Failure != nil {
		parsed.Failure.Hide(c.http.Failed(call).Secrets)
	}
	return parsed
}

// AggregateMetrics has the server pass verify responses on to its resources server
// (POST /aggregate_metrics). body is opened for each try; nothing holds it whole.
// It returns the body of the reply; the error is a *[failures.Failure].
func (c *Client) AggregateMetrics(ctx context.Context, body func() (io.ReadCloser, error)) ([]byte, error) {
	return c.http.Post(ctx, &httpcall.Call{
		What: "POST " + protocol.PathAggregateMetrics,
		Path: protocol.PathAggregateMetrics,
		Rule: retry.Once, // nothing says that it is safe to repeat
		Open: body,
	})
}
