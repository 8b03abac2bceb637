package pool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// idleTimeout is below the 30 s after which Gym servers drop an idle connection: the
// side that sends must be the one that gives up first (section 6).
const idleTimeout = 15 * time.Second

// A Transport makes HTTP/1.1 calls, each in its caller's goroutine: see the doc of the
// package. It has no limit on connections or time, takes no proxy from the environment
// and asks for no compression. It is an http.RoundTripper, safe for concurrent use, and
// tells the hooks GetConn and GotConn of a httptrace.ClientTrace. The zero value works.
//
// A request whose GetBody is set is taken for one whose body is at hand: where it is
// small, it is read before anything waits for the server.
type Transport struct {
	// DialContext makes the connections. Nil: as those of [New] are made.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLSClientConfig is for servers whose URL begins with https. Nil: the zero Config.
	TLSClientConfig *tls.Config

	mu   sync.Mutex
	idle map[string][]*conn // by address and scheme; what was used last is last
}

// New makes a pool for the servers of one driver.
func New() *Transport { return Trusting(nil) }

// Trusting is a pool as [New] makes one, which trusts the servers behind TLS whose
// certificates these authorities have signed. Nil: the system's authorities, or those
// of SSL_CERT_FILE.
func Trusting(roots *x509.CertPool) *Transport {
	t := &Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.DialContext = dialer(t.CloseIdleConnections)
	return t
}

// errStale is the error of an idle connection on which nothing could be written.
var errStale = errors.New("the connection was closed while it was idle")

// RoundTrip makes one call. A call of which not a byte could be written to an idle
// connection goes to another one.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := check(request); err != nil {
		closeBody(request)
		return nil, err
	}
	for {
		c, err := t.connection(request)
		if err != nil {
			closeBody(request)
			return nil, err
		}
		response, err := c.roundTrip(request)
		if !errors.Is(err, errStale) {
			return response, err
		}
		if request, err = rewound(request, err); err != nil {
			return nil, err
		}
	}
}

// check refuses what could not be sent as it is meant.
func check(request *http.Request) error {
	u := request.URL
	switch {
	case u == nil:
		return errors.New("the request has no URL")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("the URL %q is not one of a server", u.Redacted())
	case !isHost(u.Host) || !isHost(request.Host):
		return fmt.Errorf("there is no host %q (xn--… is how others than those of ASCII are written)", hostOf(request))
	case strings.ContainsFunc(u.Opaque+u.RawQuery, isControl): // a path is escaped
		return errors.New("the URL has a control character")
	case request.Method != "" && !isToken(request.Method):
		return fmt.Errorf("there is no method %q", request.Method)
	case request.ContentLength > 0 && (request.Body == nil || request.Body == http.NoBody):
		return fmt.Errorf("the request says that it has %d bytes of body, and has none", request.ContentLength)
	case len(request.Trailer) > 0:
		return errors.New("trailers are not sent")
	}
	return checkHeader(request.Header)
}

// isHost tells what can stand in the line of the host; whether there is such a host is
// for the resolver to say.
func isHost(host string) bool {
	return !strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' })
}

// isControl tells a control character.
func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// rewound is the request with its body anew, after a connection that was stale.
func rewound(request *http.Request, stale error) (*http.Request, error) {
	if request.Body == nil || request.Body == http.NoBody {
		return request, nil
	}
	if request.GetBody == nil {
		return nil, stale
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, err
	}
	again := *request
	again.Body = body
	return &again, nil
}

// connection finds an idle connection that is still good, or makes one.
func (t *Transport) connection(request *http.Request) (*conn, error) {
	address := addressOf(request.URL)
	key := request.URL.Scheme + " " + address
	trace := httptrace.ContextClientTrace(request.Context())
	if trace != nil && trace.GetConn != nil {
		trace.GetConn(address)
	}
	if ctx := request.Context(); ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c := t.takeIdle(key)
	if c == nil {
		raw, err := t.dial(request, address)
		if err != nil {
			return nil, err
		}
		c = newConn(t, key, raw)
	}
	if trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Conn: c.Conn, Reused: c.used, WasIdle: c.used})
	}
	return c, nil
}

// addressOf is a URL's host and port.
func addressOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// dial makes a connection. It does so in a goroutine of its own, whose stack is gone
// afterwards: dialling goes deep, and the caller's stack, once grown, would stay so for
// as long as the call waits.
func (t *Transport) dial(request *http.Request, address string) (raw net.Conn, err error) {
	dialled := make(chan struct{})
	go func() {
		defer close(dialled)
		raw, err = t.connect(request, address)
	}()
	<-dialled
	return raw, err
}

func (t *Transport) connect(request *http.Request, address string) (net.Conn, error) {
	dial := t.DialContext
	if dial == nil {
		dial = dialer(t.CloseIdleConnections)
	}
	raw, err := dial(request.Context(), "tcp", address)
	if err != nil || request.URL.Scheme == "http" {
		return raw, err
	}
	config := &tls.Config{}
	if t.TLSClientConfig != nil {
		config = t.TLSClientConfig.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = request.URL.Hostname()
	}
	secured := tls.Client(raw, config)
	if err := secured.HandshakeContext(request.Context()); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return secured, nil
}

// takeIdle takes the connection that was used last: the others may become too old, so
// that no more stay open than are in use.
func (t *Transport) takeIdle(key string) *conn {
	for {
		c := t.popIdle(key)
		if c == nil || !ended(c.Conn) && !saidMore(c.Conn) {
			return c
		}
		_ = c.Close()
	}
}

// saidMore reports whether a connection with TLS, of which nothing is left in the socket,
// has read more than its last reply: a farewell, or what nobody asked for. Of one without
// deadlines nobody can know.
func saidMore(conn net.Conn) bool {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return false
	}
	if err := secured.SetReadDeadline(longAgo); err != nil { // with it the socket is not read
		return true
	}
	_, err := secured.Read(make([]byte, 1))
	_ = secured.SetReadDeadline(time.Time{})
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (t *Transport) popIdle(key string) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		idle := t.idle[key]
		if len(idle) == 0 {
			return nil
		}
		c := idle[len(idle)-1]
		idle[len(idle)-1] = nil
		t.idle[key] = idle[:len(idle)-1]
		if c.age.Stop() {
			return c
		}
		_ = c.Close() // its time is over, and drop waits for the lock
	}
}

// keep has a connection wait for its next call.
func (t *Transport) keep(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle == nil {
		t.idle = map[string][]*conn{}
	}
	t.idle[c.key] = append(t.idle[c.key], c)
	if c.age == nil {
		c.age = time.AfterFunc(idleTimeout, func() { t.drop(c) })
		return
	}
	c.age.Reset(idleTimeout)
}

// drop closes a connection that has been idle for too long.
func (t *Transport) drop(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.idle[c.key], c); i >= 0 {
		t.idle[c.key] = slices.Delete(t.idle[c.key], i, i+1)
		_ = c.Close()
	}
}

// CloseIdleConnections closes the connections that no call is using.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.idle {
		for _, c := range idle {
			c.age.Stop()
			_ = c.Close()
		}
	}
	clear(t.idle)
}
