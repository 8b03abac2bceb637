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
	"sync"
	"time"
)

// idleTimeout is below the 30 s after which Gym servers drop an idle connection: the
// side that sends must be the one that gives up first (section 6).
const idleTimeout = 15 * time.Second

// A Transport makes HTTP/1.1 calls, each in its caller's goroutine: see the doc of the
// package. It has no limit on connections or time, takes no proxy from the environment
// and asks for no compression. It is an http.RoundTripper, safe for concurrent use, and
// tells the hooks GetConn and GotConn of a httptrace.ClientTrace.
type Transport struct {
	// DialContext makes the connections.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLSClientConfig is for servers whose URL begins with https.
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
	t := &Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, idle: map[string][]*conn{}}
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
		if request, err = rewound(request); err != nil {
			return nil, err
		}
	}
}

// check refuses what could not be sent as it is meant.
func check(request *http.Request) error {
	if request.URL.Scheme != "http" && request.URL.Scheme != "https" || request.URL.Host == "" {
		return fmt.Errorf("the URL %q is not one of a server", request.URL.Redacted())
	}
	return checkHeader(request.Header)
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// rewound is the request with its body anew.
func rewound(request *http.Request) (*http.Request, error) {
	if request.Body == nil || request.Body == http.NoBody {
		return request, nil
	}
	if request.GetBody == nil {
		return nil, errStale
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
	if err := request.Context().Err(); err != nil {
		return nil, err
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
	raw, err := t.DialContext(request.Context(), "tcp", address)
	if err != nil || request.URL.Scheme == "http" {
		return raw, err
	}
	config := t.TLSClientConfig.Clone()
	config.ServerName = request.URL.Hostname()
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
		if c == nil || !ended(c.Conn) {
			return c
		}
		_ = c.Close()
	}
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
	idle := t.idle[c.key]
	for i := range idle {
		if idle[i] == c {
			t.idle[c.key] = append(idle[:i], idle[i+1:]...)
			_ = c.Close()
			return
		}
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
