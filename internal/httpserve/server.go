// Package httpserve is how this project's HTTP servers listen: with a limit on how
// long a caller may take to say what it wants, a log of their own, and an end that
// does not wait for connections on which nothing was ever asked.
package httpserve

import (
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// ReadHeaderTimeout bounds how long a connection may take to say what it wants.
const ReadHeaderTimeout = time.Minute

// OverTLS has a listener's connections speak TLS, from 1.2 on, and HTTP/1.1 in it.
//
// HTTP/2 is not offered: one connection would carry all episodes of a caller, of which
// net/http lets 250 be under way, and what ends the connection would end them all.
// Callers of Gym servers do not speak it either.
func OverTLS(listener net.Listener, certificate tls.Certificate) net.Listener {
	return tls.NewListener(listener, &tls.Config{
		Certificates: []tls.Certificate{certificate},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"http/1.1"},
	})
}

// New makes a server. net/http's own messages go to the logger's debug level, for
// otherwise they go to the standard error.
//
// Clients dial more connections than they come to use. http.Server.Shutdown would
// wait five seconds for each of them to speak; here it closes them at once.
func New(handler http.Handler, logger zerolog.Logger) *http.Server {
	unused := &connections{open: map[net.Conn]bool{}}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: ReadHeaderTimeout,
		ConnState:         unused.note,
		ErrorLog:          log.New(debugWriter{logger}, "", 0),
	}
	server.RegisterOnShutdown(unused.close)
	return server
}

type debugWriter struct{ logger zerolog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.logger.Debug().Msg(string(p))
	return len(p), nil
}

// Listener has a person told of connections that cannot be accepted, as for want of
// descriptors: the server itself only tries again, for ever.
func Listener(listener net.Listener, logger zerolog.Logger) net.Listener {
	return &tellingListener{Listener: listener, logger: logger}
}

// tellAgain is how long nobody is told again.
const tellAgain = time.Minute

// A tellingListener is used by one goroutine, as http.Server does it.
type tellingListener struct {
	net.Listener
	logger zerolog.Logger
	told   time.Time
}

func (l *tellingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) && time.Since(l.told) >= tellAgain {
		l.told = time.Now()
		l.logger.Warn().Err(err).Msg("no connection can be accepted; callers wait (for more descriptors, raise the limit that ulimit -n shows)")
	}
	return conn, err
}

// connections are those on which nothing was asked yet.
type connections struct {
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state != http.StateNew {
		delete(c.open, conn)
		return
	}
	c.open[conn] = true
	if c.closed { // it came as the listener closed
		_ = conn.Close()
	}
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.open {
		_ = conn.Close()
	}
}
