package episodetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// A link is a caller's connection and the one to the server behind that belongs to it
// alone: what the one side does to its connection, the other sees on its own.
//
// Each connection has at most one reader. The caller's is a goroutine that reads the
// rest of a request and then waits for the next one, and so notices when the caller
// goes away meanwhile; it reports to next. The server's is a goroutine that waits for
// the first byte of a reply, also when none is due, and so notices when the server
// ends an idle connection; it reports to reply, and what follows is then the link's to
// read.
type link struct {
	proxy *Proxy
	ctx   context.Context // ends with the connection; its cause says why
	end   context.CancelCauseFunc

	caller     *net.TCPConn
	fromCaller *bufio.Reader
	next       chan error     // nil: a request begins
	reading    sync.WaitGroup // the caller's reader

	server *serverConn // nil: none is open
}

// A serverConn is a connection to the server behind.
type serverConn struct {
	*net.TCPConn
	r       *bufio.Reader
	reply   chan error // nil: a reply begins
	awaited bool       // the server's reader is at work, or its report not yet taken
	waiting sync.WaitGroup
	forget  func() bool
}

// linger is how long a caller that was dropped has for noticing, after which what it
// still sends is met with a reset. One that is well does so at once.
const linger = 10 * time.Second

func newLink(p *Proxy, caller *net.TCPConn) *link {
	l := &link{proxy: p, caller: caller, fromCaller: bufio.NewReader(caller), next: make(chan error, 1)}
	l.ctx, l.end = context.WithCancelCause(p.ctx)
	return l
}

// serve serves one call after the other until the connection ends.
func (l *link) serve() {
	context.AfterFunc(l.ctx, func() { _ = l.caller.Close() })
	defer func() {
		l.end(errClosed)
		_ = l.caller.Close()
		l.closeServer()
		l.reading.Wait()
	}()
	l.read(nil, io.Discard)
	for l.begins() {
		if again := l.serveCall(); !again {
			return
		}
	}
}

// read has the caller's reader pass on the rest of a request and then wait for the next.
// What cannot be passed on is read all the same: the server may have replied early.
func (l *link) read(rest io.Reader, to io.Writer) {
	l.reading.Go(func() {
		var err error
		if rest != nil {
			_, err = io.Copy(&deaf{to: to}, rest)
		}
		if err == nil {
			_, err = l.fromCaller.Peek(1)
		}
		if err != nil {
			l.end(errCallerGone)
		}
		l.next <- err
	})
}

// begins waits for the next request.
func (l *link) begins() bool {
	var ended chan error
	if l.server != nil {
		l.server.wait()
		ended = l.server.reply
	}
	select {
	case err := <-l.next:
		return err == nil
	case <-ended: // or it says something unasked
		l.drop()
		return false
	}
}

// serveCall serves one call, and reports whether the connection can carry another.
// When it can, the caller's reader is at work.
func (l *link) serveCall() bool {
	head, err := readHead(l.fromCaller)
	if err != nil {
		return false
	}
	request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		_, _ = io.WriteString(l.caller, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		l.drop()
		return false
	}
	call, fault, healed := l.proxy.arrive(request)
	x := &exchange{
		link:    l,
		call:    call,
		fault:   fault,
		healed:  healed,
		head:    head,
		request: request,
		body:    framingOfRequest(request).body(l.fromCaller),
	}
	return x.run()
}

// connect opens the connection to the server behind if there is none.
func (l *link) connect() error {
	if l.server != nil {
		return nil
	}
	server, err := l.dial()
	if err != nil {
		return err
	}
	l.server = server
	return nil
}

func (l *link) dial() (*serverConn, error) {
	port := l.proxy.target.Port()
	if port == "" {
		port = "80"
	}
	conn, err := new(net.Dialer).DialContext(l.ctx, "tcp", net.JoinHostPort(l.proxy.target.Hostname(), port))
	if err != nil {
		return nil, err
	}
	s := &serverConn{TCPConn: conn.(*net.TCPConn), r: bufio.NewReader(conn), reply: make(chan error, 1)}
	s.forget = context.AfterFunc(l.ctx, func() { _ = conn.Close() })
	return s, nil
}

// wait has the server's reader wait for a reply, if it does not yet.
func (s *serverConn) wait() {
	if s.awaited {
		return
	}
	s.awaited = true
	s.waiting.Go(func() {
		_, err := s.r.Peek(1)
		s.reply <- err
	})
}

// begins waits for the first byte of a reply.
func (s *serverConn) begins() error {
	s.wait()
	s.awaited = false
	return <-s.reply
}

func (s *serverConn) close() {
	s.forget()
	_ = s.Close()
	s.waiting.Wait()
}

func (l *link) closeServer() {
	if l.server != nil {
		l.server.close()
		l.server = nil
	}
}

// drop ends the caller's connection in good order. The caller's reader may be at work
// or not. What the caller still sends is taken, for a connection that is closed with
// something unread is reset.
func (l *link) drop() {
	l.closeServer()
	_ = l.caller.CloseWrite()
	_ = l.caller.SetReadDeadline(time.Now().Add(linger))
	l.reading.Wait()
	_, _ = io.Copy(io.Discard, l.fromCaller)
}

// reset breaks the caller's connection off.
func (l *link) reset() {
	_ = l.caller.SetLinger(0) // the close then sends a reset instead of an end
	_ = l.caller.Close()
}

// cut resets the connection from without.
func (l *link) cut() {
	_ = l.caller.SetLinger(0) // before anything closes it
	l.end(errCut)
	_ = l.caller.Close()
}

// breakOff has the caller see what the server behind did.
func (l *link) breakOff(err error) {
	if errors.Is(err, syscall.ECONNRESET) {
		l.reset()
		return
	}
	l.drop()
}

// deaf takes everything, also when what it writes to does not any more.
type deaf struct {
	to     io.Writer
	failed bool
}

func (d *deaf) Write(p []byte) (int, error) {
	if !d.failed {
		_, err := d.to.Write(p)
		d.failed = err != nil
	}
	return len(p), nil
}
