package pool_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/turn/internal/pool"
	"example.com/turn/internal/testcerts"
)

// A corked connection keeps what is written to it until it is let out, in one go.
type corkedConn struct {
	net.Conn
	corked bool
	kept   bytes.Buffer
}

func (c *corkedConn) Write(p []byte) (int, error) {
	if c.corked {
		return c.kept.Write(p)
	}
	return c.Conn.Write(p)
}

// SetWriteDeadline does nothing: behind its farewell TLS has every write fail.
func (c *corkedConn) SetWriteDeadline(time.Time) error { return nil }

func (c *corkedConn) uncork() {
	c.corked = false
	_, _ = c.kept.WriteTo(c.Conn)
}

// listenTLS starts a server as listen does, and makes a pool that trusts it.
func listenTLS(t *testing.T, config *tls.Config, serve func(conn *tls.Conn, raw *corkedConn, n int)) (string, *pool.Transport) {
	t.Helper()
	authority := testcerts.NewAuthority(t)
	config.Certificates = []tls.Certificate{authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate}
	address := listen(t, func(conn *net.TCPConn, n int) {
		raw := &corkedConn{Conn: conn}
		secured := tls.Server(raw, config)
		if err := secured.Handshake(); err == nil {
			serve(secured, raw, n)
		}
	})
	transport := pool.Trusting(authority.Roots())
	t.Cleanup(transport.CloseIdleConnections)
	return "https://" + address, transport
}

// What a server says through TLS behind its reply is found before the next call, also when
// it came together with the reply and is not in the socket any more: the farewell of a
// server that keeps its side open until it has ours, and what nobody asked for. The
// tickets of a session are no reason against a connection.
func TestWhichConnectionsWithTLSAreUsedAgain(t *testing.T) {
	const together, later = "together", "later"
	both := []string{together, later}
	for _, test := range []struct {
		name   string
		behind func(conn *tls.Conn) // what the server does behind its reply
		again  bool
		moment []string // when it comes, as seen from the reply
	}{
		{"nothing", func(*tls.Conn) {}, true, both},
		{"the farewell", func(conn *tls.Conn) { _ = conn.CloseWrite() }, false, both},
		{"another reply", func(conn *tls.Conn) { _, _ = io.WriteString(conn, answerOK) }, false, both},
		{"another reply and the farewell", func(conn *tls.Conn) {
			_, _ = io.WriteString(conn, answerOK)
			_ = conn.CloseWrite()
		}, false, both},
		// Together with the reply, these would take it along.
		{"the end", func(conn *tls.Conn) { _ = conn.Close() }, false, []string{later}},
		{"the end without a farewell", func(conn *tls.Conn) { _ = conn.NetConn().(*corkedConn).Conn.Close() }, false, []string{later}},
	} {
		for version, number := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
			for _, at := range test.moment {
				t.Run(test.name+", "+version+", "+at, func(t *testing.T) {
					read, did := make(chan struct{}), make(chan struct{})
					var calls atomic.Int64
					url, transport := listenTLS(t, &tls.Config{MaxVersion: number}, func(conn *tls.Conn, raw *corkedConn, n int) {
						in := bufio.NewReader(conn)
						for {
							if _, err := readHead(in); err != nil {
								return
							}
							if calls.Add(1) > 1 {
								_, _ = io.WriteString(conn, answerOK)
								continue
							}
							raw.corked = at == together
							_, _ = io.WriteString(conn, answerOK)
							if at == later {
								<-read
							}
							test.behind(conn)
							raw.uncork()
							close(did)
						}
					})
					dials := 0
					dial := transport.DialContext
					transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
						dials++
						return dial(ctx, network, address)
					}
					response, err := transport.RoundTrip(newRequest(t, "POST", url, nil))
					take(t, response, err)
					close(read)
					soon(t, "the server's deed", did)
					response, err = transport.RoundTrip(newRequest(t, "POST", url, nil))
					if got := take(t, response, err); got != "{}" {
						t.Errorf("the next call got %q", got)
					}
					if again := dials == 1; again != test.again {
						t.Errorf("the connection was used again: %v, want %v", again, test.again)
					}
					if got := calls.Load(); got != 2 {
						t.Errorf("%d requests came, want 2", got)
					}
				})
			}
		}
	}
}

// Many calls go over one connection with TLS, large ones too.
func TestAConnectionWithTLSIsKept(t *testing.T) {
	var conns atomic.Int64
	url, transport := listenTLS(t, &tls.Config{}, func(conn *tls.Conn, _ *corkedConn, _ int) {
		conns.Add(1)
		answerAll(conn)
	})
	for i := range 10 {
		body := strings.NewReader(strings.Repeat("x", i*10_000))
		response, err := transport.RoundTrip(newRequest(t, "POST", url, body))
		if got := take(t, response, err); got != "{}" {
			t.Errorf("got %q", got)
		}
	}
	if got := conns.Load(); got != 1 {
		t.Errorf("%d connections", got)
	}
}

// A call that is given up says no farewell to a server that reads nothing: TLS would wait
// five seconds for it.
func TestACallWithTLSEndsAtOnce(t *testing.T) {
	for name, size := range map[string]int{"a small body": 4, "a large body": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				authority := testcerts.NewAuthority(t)
				config := &tls.Config{SessionTicketsDisabled: true, Certificates: []tls.Certificate{
					authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate,
				}}
				leave := make(chan struct{})
				serving := pipe(t, func(conn net.Conn) {
					if err := tls.Server(conn, config).Handshake(); err != nil {
						t.Error(err)
					}
					<-leave
				})
				transport := pool.Trusting(authority.Roots())
				transport.DialContext = serving.DialContext
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errGaveUp)
				defer cancel()
				body := strings.NewReader(strings.Repeat("x", size))
				began := time.Now()
				_, err := transport.RoundTrip(newRequest(t, "POST", "https://127.0.0.1", body).WithContext(ctx))
				if !errors.Is(err, errGaveUp) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took > time.Minute+time.Second {
					t.Errorf("took %s, want a minute", took)
				}
				close(leave)
			})
		})
	}
}

// A connection that knows no deadlines cannot be looked at without waiting for it, and has
// no second call.
func TestAnIdleConnectionWithTLSAndWithoutDeadlinesIsNotWaitedFor(t *testing.T) {
	var conns atomic.Int64
	url, transport := listenTLS(t, &tls.Config{}, func(conn *tls.Conn, _ *corkedConn, _ int) {
		conns.Add(1)
		answerAll(conn)
	})
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return timelessConn{conn}, err
	}
	called := make(chan error)
	for range 2 {
		go func() {
			response, err := transport.RoundTrip(newRequest(t, "POST", url, nil))
			if err == nil {
				_, err = io.Copy(io.Discard, response.Body)
			}
			called <- err
		}()
		if err := soon(t, "the reply", called); err != nil {
			t.Error(err)
		}
	}
	if got := conns.Load(); got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

// A pool without a configuration of TLS trusts the system's authorities, and one with the
// name of a server goes by this.
func TestTheConfigurationOfTLS(t *testing.T) {
	names := make(chan string, 10)
	server := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		names <- hello.ServerName
		return nil, nil
	}}
	url, trusting := listenTLS(t, server, func(conn *tls.Conn, _ *corkedConn, _ int) { answerAll(conn) })

	var zero pool.Transport
	var unknown *tls.CertificateVerificationError
	if _, err := zero.RoundTrip(newRequest(t, "GET", url, nil)); !errors.As(err, &unknown) {
		t.Errorf("got %v, want that the certificate is of an unknown authority", err)
	}
	<-names

	named := &pool.Transport{TLSClientConfig: trusting.TLSClientConfig.Clone()}
	t.Cleanup(named.CloseIdleConnections)
	named.TLSClientConfig.ServerName = "weather.internal"
	if _, err := named.RoundTrip(newRequest(t, "GET", url, nil)); !errors.As(err, &unknown) {
		t.Errorf("got %v, want that the certificate is another's", err)
	}
	if got := <-names; got != "weather.internal" {
		t.Errorf("asked for %q", got)
	}

	response, err := trusting.RoundTrip(newRequest(t, "GET", url, nil))
	if got := take(t, response, err); got != "{}" {
		t.Errorf("got %q", got)
	}
}

// A server that does not get on with TLS is waited for as long as the context lasts, and
// its connection is closed.
func TestAHandshakeEndsWithTheContext(t *testing.T) {
	asked, ended := make(chan struct{}), make(chan struct{})
	address := listen(t, func(conn *net.TCPConn, _ int) {
		_, _ = conn.Read(make([]byte, 1))
		close(asked)
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	body := &closable{Reader: strings.NewReader("four")}
	request := newRequest(t, http.MethodPost, "https://"+address, nil).WithContext(ctx)
	request.Body, request.ContentLength = body, 4
	if _, err := newPool(t).RoundTrip(request); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	soon(t, "the connection's end", ended)
	if got := body.closed.Load(); got != 1 {
		t.Errorf("the body was closed %d times", got)
	}
}
