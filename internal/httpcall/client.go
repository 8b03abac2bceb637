package httpcall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/rawjson"
	"example.com/turn/observe"
	"example.com/turn/protocol"
	"example.com/turn/retry"
)

// DefaultMaxReplyBytes is how large a reply may be: a gibibyte.
const DefaultMaxReplyBytes = 1 << 30

// A Config says how one server is called.
type Config struct {
	// URL is the server's base URL: http or https, without a query. A path is
	// put before that of each call.
	URL string
	// Server names the server in reasons and logs: "agent server weather_agent".
	Server string
	// Transport makes the connections. Nil: a pool for this client
	// alone.
	Transport http.RoundTripper
	// Token is shown to the server with every call, and to nobody else. It is secret.
	Token protocol.Token
	// Resend bounds the re-sends of a call whose connection failed.
	Resend retry.Resend
	// MaxReplyBytes bounds the body of a reply. 0: DefaultMaxReplyBytes.
	MaxReplyBytes int64
	// Logger gets a warning when the server's connections begin to fail, and when
	// the token goes there in the open. The zero value discards.
	Logger zerolog.Logger
	// Observe is told of the calls. Nil: nobody is.
	Observe observe.Calls
	// Clock is the time. Nil: time.Now.
	Clock func() time.Time
}

// Validate reports everything that is wrong with the configuration. It shows no
// part of a URL that may be a secret.
func (c Config) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", c.Server, fmt.Errorf(format, args...)))
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		u = &url.URL{}
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		got := "" // what does not parse may hold a password anywhere
		if err == nil && !strings.ContainsAny(c.URL, "@?#") {
			got = fmt.Sprintf(", got %q", c.URL)
		}
		wrong("want an absolute URL such as http://127.0.0.1:9001%s", got)
	}
	if c.Transport == nil && strings.ContainsFunc(u.Host, func(r rune) bool { return r > '~' }) {
		wrong("the host of the URL must be written in ASCII, as xn--…")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			wrong("there is no port %s", port)
		}
	}
	if u.User != nil {
		wrong("the URL must not hold a user name or password")
	}
	if strings.ContainsAny(c.URL, "?#") { // also an empty one, for paths are put behind it
		wrong("the URL must not have a query or a fragment")
	}
	if err := c.Token.Validate(); err != nil {
		wrong("%w", err)
	}
	if c.MaxReplyBytes < 0 {
		wrong("the limit on replies must not be negative")
	}
	if c.Resend.Pause < 0 {
		wrong("the pause before a call is sent again must not be negative")
	}
	return errors.Join(errs...)
}

// A Client makes the calls to one server. It is safe for concurrent use.
type Client struct {
	config  Config
	base    string      // without a slash at its end
	url     url.URL     // the same
	header  http.Header // of every call
	secrets *failures.Secrets
	trouble trouble
}

// New makes a client. The configuration must be valid.
func New(config Config) *Client {
	if config.Transport == nil {
		config.Transport = pool.New()
	}
	if config.MaxReplyBytes == 0 {
		config.MaxReplyBytes = DefaultMaxReplyBytes
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if host := config.Token.ExposedAt(config.URL); host != "" {
		config.Logger.Warn().Str("server", config.Server).Msgf("the token goes over plain http to %s: anyone on the way can read it", host)
	}
	c := &Client{config: config, base: strings.TrimRight(config.URL, "/"), secrets: &failures.Secrets{}}
	if parsed, err := url.Parse(c.base); err == nil { // as it does of a valid configuration
		c.url = *parsed
	}
	c.header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {"turn"}}
	if config.Token != "" {
		c.header["Authorization"] = []string{config.Token.Header()}
	}
	c.secrets.AddToken(string(config.Token))
	return c
}

// at is the address of a path, in which nothing needs to be escaped.
func (c *Client) at(path string) *url.URL {
	target := c.url
	target.Path += path
	if target.RawPath != "" {
		target.RawPath += path
	}
	return &target
}

// NewJar makes the jar of a session. The values of its cookies become secrets, and the
// client's token does; nil: of the jar alone.
func (c *Client) NewJar(secrets *failures.Secrets) *cookies.Jar {
	if secrets == nil {
		secrets = &failures.Secrets{}
	}
	secrets.AddToken(string(c.config.Token))
	return cookies.NewJar(secrets)
}

// URL is the server's base URL, without a slash at its end.
func (c *Client) URL() string { return c.base }

// A Call is one POST.
type Call struct {
	Stage failures.Stage
	// What names the call in reasons: "POST /verify", without the prefixes that
	// differ from episode to episode.
	What string
	Path string
	Rule retry.Rule
	Body rawjson.Body
	// Open gives the body in place of Body, anew for each send: one that is too
	// large to be held. Its length is not announced.
	Open func() (io.ReadCloser, error)
	// Jar, one of [Client.NewJar], gets the cookies of every reply, those of refusals
	// and redirects too. Nil: they are dropped.
	Jar *cookies.Jar
	// Fresh calls carry no cookie, not even one that a broken reply to the same
	// call has left in the jar: they open the session.
	Fresh bool
	// Patient calls wait, for as long as their context lets them, for descriptors,
	// ports or memory that this machine lacks, and send nothing meanwhile: nobody
	// else would make them.
	Patient bool
	// NoReply calls are answered by the status alone: the body of a success has to
	// come, and is not looked at.
	NoReply bool
}

// Failed is what failures of the call have in common.
func (c *Client) Failed(call *Call) failures.Call {
	failed := failures.Call{Stage: call.Stage, Server: c.config.Server, What: call.What, Secrets: c.secrets}
	if call.Jar != nil {
		failed.Secrets = call.Jar.Secrets()
	}
	return failed
}

// Post makes the call and returns the body of a successful reply (200 to 299).
// Every other end is a *[failures.Failure]. When ctx ends, Post returns without
// delay, and no byte of the call is sent after that.
func (c *Client) Post(ctx context.Context, call *Call) ([]byte, error) {
	reply, failure := c.send(ctx, call, false)
	if failure != nil {
		return nil, failure
	}
	if !reply.success() {
		return nil, c.refused(call, reply)
	}
	return reply.body, nil
}

func (c *Client) refused(call *Call, reply reply) *failures.Failure {
	failed := c.Failed(call)
	if carried := call.carried(); carried > manyCookies && reply.blames() {
		failed.What += fmt.Sprintf(" (which carries %d bytes of its cookies)", carried)
	}
	return failures.Refused(failed, reply.status, reply.header, reply.body, c.config.Clock())
}

// manyCookies is how many bytes of cookies no server minds. A refusal of more may be
// for their sake, and they are its own.
const manyCookies = 8 << 10

func (c *Call) carried() int {
	if c.Jar == nil || c.Fresh {
		return 0
	}
	return len(c.Jar.Header())
}

// A Reply is a server's answer as it came.
type Reply struct {
	Status          int
	ContentType     string // "" when it says none
	ContentEncoding string // "" when it says none
	Body            []byte // encoded, when ContentEncoding says so
}

// Forward makes the call and returns the reply when it is the caller's business: a
// success, or a refusal that blames the request (400 to 499). It is whole, and not
// looked into. Every other end is a *[failures.Failure], as it is of [Client.Post].
func (c *Client) Forward(ctx context.Context, call *Call) (Reply, error) {
	reply, failure := c.send(ctx, call, true)
	if failure != nil {
		return Reply{}, failure
	}
	if !reply.success() && !reply.blames() {
		return Reply{}, c.refused(call, reply)
	}
	return Reply{
		Status:          reply.status,
		ContentType:     reply.header.Get("Content-Type"),
		ContentEncoding: strings.Join(reply.header.Values("Content-Encoding"), ", "),
		Body:            reply.body,
	}, nil
}

// quietTime is how long further calls that break are not warned of.
const quietTime = 10 * time.Second

// broken warns of a call that found the server's connections failing, so that a
// person learns of it at once, and not a thousand times.
func (c *Client) broken(call *Call, err error, reached bool, wait time.Duration) {
	event := c.config.Logger.Debug()
	if c.trouble.warn(c.config.Clock()) {
		event = c.config.Logger.Warn()
	}
	failure := failures.Broken(c.Failed(call), err, reached, nil)
	event.Str("server", c.config.Server).Str("call", call.What).Str("reason", failure.Reason).Int64("again_in_ms", wait.Milliseconds()).Msg("a call broke and is sent again")
}

func (c *Client) answered() {
	if c.trouble.over(c.config.Clock) {
		c.config.Logger.Info().Str("server", c.config.Server).Msg("the server answers again")
	}
}

// trouble remembers what a person was told of a server's connections.
type trouble struct {
	known atomic.Bool  // a warning stands
	since atomic.Int64 // when it was given, in nanoseconds
}

// warn reports whether a warning is due.
func (t *trouble) warn(now time.Time) bool {
	since := t.since.Load()
	if since != 0 && now.Sub(time.Unix(0, since)) < quietTime || !t.since.CompareAndSwap(since, now.UnixNano()) {
		return false
	}
	t.known.Store(true)
	return true
}

// over reports whether a warning can be taken back: one that stands long enough
// for the connections not to be coming and going.
func (t *trouble) over(clock func() time.Time) bool {
	return t.known.Load() && clock().Sub(time.Unix(0, t.since.Load())) >= quietTime && t.known.CompareAndSwap(true, false)
}
