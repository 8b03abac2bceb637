package pool

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// An agent's turn may be silent for hours; keep-alive probes tell a server that thinks
// from one that is gone (section 6).
const (
	keepAliveIdle     = 60 * time.Second
	keepAliveInterval = 10 * time.Second
	keepAliveProbes   = 3
)

// dialer makes connections. For want of a descriptor it gives idle ones up.
func dialer(giveUpIdle func()) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if lacksDescriptors(err) { // those of idle connections are worth less than this one
			giveUpIdle()
			conn, err = dial(ctx, network, address)
		}
		return conn, err
	}
}

func lacksDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// dial connects to a server. It makes up for what net.Dialer leaves open: localhost
// is two addresses even where /etc/hosts knows of one, and a look-up that failed
// for want of a descriptor does not say so.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable:   true,
		Idle:     keepAliveIdle,
		Interval: keepAliveInterval,
		Count:    keepAliveProbes,
	}}
	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil {
		return &countedConn{Conn: conn}, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	if host, port, _ := net.SplitHostPort(address); strings.EqualFold(host, "localhost") {
		for _, loopback := range []string{"127.0.0.1", "::1"} {
			if conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(loopback, port)); err == nil {
				return &countedConn{Conn: conn}, nil
			}
		}
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		probe, lacking := os.Open(os.DevNull)
		if lacking != nil {
			return nil, fmt.Errorf("%w (%w)", err, lacking)
		}
		_ = probe.Close()
	}
	return nil, err
}

// A countedConn counts what is written to it: no http.RoundTripper tells a request of
// which not a byte was written from one that may have reached its server.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.written.Add(int64(len(p))) // first: nobody may find it written and not counted
	return c.Conn.Write(p)
}

// NetConn is the connection beneath, as tls.Conn has it.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// A Watch tells whether a connection was written to.
type Watch struct {
	conn   *countedConn
	before int64
}

// WatchWrites begins to watch a connection. For one that no pool of this package has
// made, Wrote is always true.
func WatchWrites(conn net.Conn) Watch {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	counted, ok := conn.(*countedConn)
	if !ok {
		return Watch{}
	}
	return Watch{counted, counted.written.Load()}
}

// Wrote reports whether a byte may have been written since the watch began.
func (w Watch) Wrote() bool { return w.conn == nil || w.conn.written.Load() != w.before }
