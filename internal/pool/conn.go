package pool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHead is how large the head of a reply may be, those of the replies before it
	// (100 to 199) included; as in net/http.
	maxHead = 10 << 20

	// smallBody is how large a body may be, in bytes, that is sent together with its
	// head. It fits into any socket's buffer, so that sending it does not wait for the
	// server to read.
	smallBody = 16 << 10

	// lastWords is how long a reply may take of a server that reads no further, and how
	// long a body that is still being sent may take when its reply has come.
	lastWords = 50 * time.Millisecond
)

// A conn is a connection that is used by one call at a time.
type conn struct {
	net.Conn
	transport *Transport
	key       string      // of the idle ones that it belongs to
	age       *time.Timer // drops it when it is idle for too long; nil before that
	used      bool        // it has had a call
	left      int64       // bytes that may still be read

	mu  sync.Mutex
	cut bool // its call was given up
}

func newConn(t *Transport, key string, raw net.Conn) *conn {
	return &conn{Conn: raw, transport: t, key: key}
}

var errHead = fmt.Errorf("the reply's headers exceeded %d bytes", maxHead)

// Read reads as much as the reply may have.
func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHead
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// roundTrip makes a call. Whatever comes of it, the connection is kept or closed in the
// end: by roundTrip when it fails, else by the response's body.
func (c *conn) roundTrip(request *http.Request) (*http.Response, error) {
	e := &exchange{conn: c, request: request, uncut: context.AfterFunc(request.Context(), c.giveUp)}
	e.send()
	response, err := e.receive()
	if err == nil {
		return response, nil
	}
	failed := e.end(false)
	switch {
	case c.used && e.broken != nil && e.written.Load() == 0 && request.Context().Err() == nil:
		return nil, errStale
	case failed != nil && !errors.Is(failed, net.ErrClosed):
		return nil, failed // what came first says more
	}
	return nil, err
}

// giveUp ends what the connection is waiting for.
func (c *conn) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	_ = c.SetDeadline(time.Unix(1, 0)) // long ago
}

// hurry gives the server little time for what it still has to say.
func (c *conn) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.cut {
		_ = c.SetReadDeadline(time.Now().Add(lastWords))
	}
}

// An exchange is a call on a connection: a request that is sent, and its reply.
type exchange struct {
	conn    *conn
	request *http.Request
	uncut   func() bool // ends the watch of the call's context
	in      *bufio.Reader
	written atomic.Int64 // bytes given to the connection
	broken  error        // it took no more

	sent  chan error // has how sending ended, when it has; nil: it was not begun in a goroutine
	wrote error      // how it ended
}

// Write gives bytes to the connection and counts them.
func (e *exchange) Write(p []byte) (int, error) {
	n, err := e.conn.Conn.Write(p)
	e.written.Add(int64(n))
	if err != nil {
		e.broken = err
	}
	return n, err
}

// send sends the request: a small one at once, a large one in a goroutine, for its server
// may reply before it has read all, and read no further.
func (e *exchange) send() {
	head := heads.Get().(*[]byte)
	*head = appendHead((*head)[:0], e.request)
	size := e.request.ContentLength
	if e.request.Body == nil || e.request.Body == http.NoBody {
		size = 0
	}
	if 0 <= size && size <= smallBody {
		e.wrote = e.sendSmall(head, int(size))
		heads.Put(head)
		return
	}
	e.sent = make(chan error, 1)
	go func() {
		e.sent <- e.sendLarge(*head, size)
		heads.Put(head)
	}()
}

// heads are what requests were written in whose calls have come further.
var heads = sync.Pool{New: func() any { return new([]byte) }}

// sendSmall sends the head and the body, which it puts behind it, at once.
func (e *exchange) sendSmall(head *[]byte, size int) error {
	defer closeBody(e.request)
	if size > 0 {
		begin := len(*head)
		*head = slices.Grow(*head, size+1)[:begin+size]
		if _, err := io.ReadFull(e.request.Body, (*head)[begin:]); err != nil {
			return e.unsent(bodyError(err))
		}
		if n, _ := e.request.Body.Read((*head)[begin+size : begin+size+1]); n > 0 {
			return e.unsent(errTooLong)
		}
	}
	_, err := e.Write(*head)
	return e.unsent(err)
}

var errTooLong = errors.New("the body of the request is longer than it says")

// bodyError is why a body could not be read to the length that it says.
func bodyError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the body of the request is shorter than it says")
	}
	return err
}

// unsent does not wait any longer for a reply to a request that could not be sent, save
// for what a server may have said that reads no further.
func (e *exchange) unsent(err error) error {
	switch {
	case e.broken != nil:
		e.conn.hurry()
	case err != nil:
		e.conn.giveUp()
	}
	return err
}

func (e *exchange) sendLarge(head []byte, size int64) error {
	defer closeBody(e.request)
	if _, err := e.Write(head); err != nil {
		return e.unsent(err)
	}
	if size < 0 {
		return e.unsent(e.sendChunks())
	}
	out := &limited{to: e, left: size}
	if _, err := io.Copy(out, e.request.Body); err != nil {
		return e.unsent(err)
	}
	if out.left > 0 {
		return e.unsent(bodyError(io.ErrUnexpectedEOF))
	}
	return nil
}

// sendChunks sends a body of which nobody knows the length.
func (e *exchange) sendChunks() error {
	out := bufio.NewWriterSize(e, 32<<10)
	chunks := httputil.NewChunkedWriter(out)
	if _, err := io.Copy(chunks, e.request.Body); err != nil {
		return err
	}
	if err := chunks.Close(); err != nil {
		return err
	}
	_, _ = out.WriteString("\r\n") // Flush has its error
	return out.Flush()
}

// A limited writes no more than the request says that its body has.
type limited struct {
	to   io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		return 0, errTooLong
	}
	n, err := l.to.Write(p)
	l.left -= int64(n)
	return n, err
}

// checkHeader refuses fields that would not be read as what they are.
func checkHeader(header http.Header) error {
	for name, values := range header {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) }) {
			return fmt.Errorf("there is no header field %q", name)
		}
		for _, value := range values {
			if strings.ContainsAny(value, "\r\n\x00") { // it may be secret
				return fmt.Errorf("the value of header field %s has characters that it cannot have", name)
			}
		}
	}
	return nil
}

// isTokenRune tells what the name of a header field may have (RFC 9110, section 5.6.2).
func isTokenRune(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return true
	}
	return strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// appendHead appends the head of a request.
func appendHead(head []byte, request *http.Request) []byte {
	host := request.Host
	if host == "" {
		host = request.URL.Host
	}
	head = append(append(append(head, request.Method...), ' '), request.URL.RequestURI()...)
	head = append(append(head, " HTTP/1.1\r\nHost: "...), host...)
	for name, values := range request.Header {
		for _, value := range values {
			head = append(append(append(append(head, "\r\n"...), name...), ": "...), value...)
		}
	}
	switch size := request.ContentLength; {
	case request.Body == nil || request.Body == http.NoBody || size == 0:
		head = append(head, "\r\nContent-Length: 0"...)
	case size < 0:
		head = append(head, "\r\nTransfer-Encoding: chunked"...)
	default:
		head = strconv.AppendInt(append(head, "\r\nContent-Length: "...), size, 10)
	}
	return append(head, "\r\n\r\n"...)
}

// readers are those that no call needs just now.
var readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

// receive waits for the reply and reads its head. The wait needs no memory.
func (e *exchange) receive() (*http.Response, error) {
	if e.wrote != nil && e.written.Load() == 0 {
		return nil, e.wrote
	}
	if err := awaitReply(e.conn.Conn); err != nil {
		return nil, err
	}
	e.conn.left = maxHead
	e.in = readers.Get().(*bufio.Reader)
	e.in.Reset(e.conn)
	if _, err := e.in.Peek(1); err != nil {
		return nil, err
	}
	response, err := e.readHead()
	if e.conn.left == 0 && err != nil {
		err = errHead // the parser takes it for a line that is broken off
	}
	if err != nil {
		return nil, err
	}
	e.conn.left = math.MaxInt64
	response.Body = &body{exchange: e, from: response.Body, response: response}
	if response.StatusCode == http.StatusSwitchingProtocols {
		response.Body = &body{exchange: e, from: http.NoBody, response: response}
	} else if response.ContentLength == 0 {
		_, _ = response.Body.Read(nil) // it has ended
	}
	return response, nil
}

// readHead reads the head of the last reply: there may be some before it (100 to 199),
// which say nothing to us.
func (e *exchange) readHead() (*http.Response, error) {
	for {
		response, err := http.ReadResponse(e.in, e.request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode < 100 || response.StatusCode > 199 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, nil
		}
	}
}

// end ends the call: its connection is kept for the next one if it is good, or closed.
// It returns why the request could not be sent, if it could not.
func (e *exchange) end(good bool) error {
	c := e.conn
	good = e.uncut() && good && e.in.Buffered() == 0
	if !good {
		_ = c.Close()
	}
	if e.sent != nil {
		good = e.awaitSent(good)
	}
	if e.in != nil {
		e.in.Reset(nil)
		readers.Put(e.in)
		e.in = nil
	}
	if good && e.wrote == nil {
		c.used = true
		c.transport.keep(c)
	} else if good {
		_ = c.Close()
	}
	return e.wrote
}

// awaitSent waits for the end of the goroutine that sends, and reports whether the
// connection is still good.
func (e *exchange) awaitSent(good bool) bool {
	if good {
		late := time.NewTimer(lastWords)
		defer late.Stop()
		select {
		case e.wrote = <-e.sent:
			return true
		case <-late.C: // the server has replied without having read all
		}
		_ = e.conn.Close()
	}
	e.wrote = <-e.sent
	return false
}

// A body is that of a reply. It ends the call.
type body struct {
	*exchange
	from     io.ReadCloser
	response *http.Response
	ended    error // io.EOF when all was read
}

func (b *body) Read(p []byte) (int, error) {
	if b.ended != nil {
		return 0, b.ended
	}
	n, err := b.from.Read(p)
	if err != nil {
		b.finish(err)
	}
	return n, err
}

// Close gives up what was not read.
func (b *body) Close() error {
	if b.ended == nil {
		b.finish(errors.New("the body was closed"))
	}
	return nil
}

func (b *body) finish(how error) {
	b.ended = how
	_ = b.end(how == io.EOF && !b.response.Close)
}
