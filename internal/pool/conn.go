package pool

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
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

// longAgo is the deadline of what is to end now.
var longAgo = time.Unix(1, 0)

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
	case request.Context().Err() != nil:
		return nil, context.Cause(request.Context())
	case c.used && failed != nil && e.broken != nil && e.written.Load() == 0:
		return nil, fmt.Errorf("%w: %w", errStale, e.broken)
	case failed != nil && !errors.Is(failed, net.ErrClosed):
		return nil, failed // what came first says more
	}
	return nil, err
}

// giveUp ends what the connection is waiting for.
func (c *conn) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutOff()
}

// cutOff is giveUp for who holds the lock.
func (c *conn) cutOff() {
	c.cut = true
	if err := c.SetDeadline(longAgo); err != nil { // there are connections without any
		_ = c.Conn.Close()
	}
}

// Close closes the connection. One that was given up gets no farewell of TLS, which would
// wait for a server that reads nothing.
func (c *conn) Close() error {
	c.mu.Lock()
	cut := c.cut
	c.mu.Unlock()
	if secured, ok := c.Conn.(*tls.Conn); ok && cut {
		return secured.NetConn().Close()
	}
	return c.Conn.Close()
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
	over    bool         // the connection is not the call's any longer; under its lock

	sent  chan error // has how sending ended, when it has; nil: it was not begun in a goroutine
	wrote error      // how it ended
}

// Write gives bytes to the connection and counts them. The watch of the context runs
// beside it and may be late.
func (e *exchange) Write(p []byte) (int, error) {
	if err := e.request.Context().Err(); err != nil {
		return 0, err
	}
	n, err := e.conn.Conn.Write(p)
	e.written.Add(int64(n))
	if err != nil {
		e.broken = err
	}
	return n, err
}

// send sends the request: a small one at once, a large one in a goroutine, for its server
// may reply before it has read all, and read no further. So is one that cannot be had
// again, for it may come from where it is waited for.
func (e *exchange) send() {
	head := heads.Get().(*[]byte)
	*head = appendHead((*head)[:0], e.request)
	size := sizeOf(e.request)
	if size == 0 || 0 < size && size <= smallBody && e.request.GetBody != nil {
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

// sizeOf is how long a request's body is, negative when nobody knows.
func sizeOf(request *http.Request) int64 {
	switch {
	case request.Body == nil || request.Body == http.NoBody:
		return 0
	case request.ContentLength == 0: // it was not said
		return -1
	}
	return request.ContentLength
}

// sendSmall sends the head and the body, which it puts behind it, at once.
func (e *exchange) sendSmall(head *[]byte, size int) error {
	defer closeBody(e.request)
	if size > 0 {
		begin := len(*head)
		*head = slices.Grow(*head, size+1)[:begin+size]
		if _, err := io.ReadFull(e.request.Body, (*head)[begin:]); err != nil {
			return bodyError(err)
		}
		if n, _ := e.request.Body.Read((*head)[begin+size : begin+size+1]); n > 0 {
			return errTooLong
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
		if !isToken(name) {
			return fmt.Errorf("there is no header field %q", name)
		}
		for _, value := range values {
			if strings.ContainsFunc(value, func(r rune) bool { return r != '\t' && isControl(r) }) { // it may be secret
				return fmt.Errorf("the value of header field %s has characters that it cannot have", name)
			}
		}
	}
	return nil
}

// isToken tells what the name of a method or a header field may be (RFC 9110, section 5.6.2).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) })
}

func isTokenRune(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return true
	}
	return strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// appendHead appends the head of a request.
func appendHead(head []byte, request *http.Request) []byte {
	head = append(append(append(head, cmp.Or(request.Method, http.MethodGet)...), ' '), request.URL.RequestURI()...)
	head = append(append(head, " HTTP/1.1\r\nHost: "...), hostOf(request)...)
	for name, values := range request.Header {
		if isOurs(name) {
			continue
		}
		for _, value := range values {
			head = append(append(append(append(head, "\r\n"...), name...), ": "...), value...)
		}
	}
	if request.Close && !saysClose(request.Header) {
		head = append(head, "\r\nConnection: close"...)
	}
	if size := sizeOf(request); size < 0 {
		head = append(head, "\r\nTransfer-Encoding: chunked"...)
	} else if size > 0 || hasBody(request.Method) {
		head = strconv.AppendInt(append(head, "\r\nContent-Length: "...), size, 10)
	}
	return append(head, "\r\n\r\n"...)
}

// hostOf is how a request names its server. The zone of an address is nobody's business
// but ours (RFC 6874).
func hostOf(request *http.Request) string {
	host := cmp.Or(request.Host, request.URL.Host)
	end := strings.LastIndexByte(host, ']')
	if !strings.HasPrefix(host, "[") || end < 0 {
		return host
	}
	address, _, _ := strings.Cut(host[:end], "%")
	return address + host[end:]
}

// isOurs reports whether a field is made of the request's other parts.
func isOurs(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
		return true
	}
	return false
}

// hasBody reports whether a request of a method is expected to have a body.
func hasBody(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// saysClose reports whether the sender of a header uses the connection no further.
func saysClose(header http.Header) bool { return strings.EqualFold(header.Get("Connection"), "close") }

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
	b := &body{exchange: e, from: response.Body}
	b.last = response.Close || e.request.Close || saysClose(e.request.Header) || response.StatusCode <= 199
	if response.StatusCode == http.StatusSwitchingProtocols {
		b.from = http.NoBody // what comes is of the other protocol
	}
	response.Body = b
	if b.from == http.NoBody {
		_, _ = b.Read(nil) // it has ended
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
	c.mu.Lock()
	e.over = true
	good = good && !c.cut
	c.mu.Unlock()
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
// connection is still good. A goroutine that waits for the request's body, and not for
// the connection, is left to itself: it ends when that body has something to say.
func (e *exchange) awaitSent(good bool) bool {
	if good && e.sentInTime() {
		return true
	}
	_ = e.conn.Close() // the server may have replied without having read all
	e.sentInTime()
	return false
}

// sentInTime waits a little for the goroutine that sends.
func (e *exchange) sentInTime() bool {
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case e.wrote = <-e.sent:
		return true
	case <-late.C:
		return false
	}
}

// A body is that of a reply. It ends the call.
type body struct {
	*exchange
	from io.ReadCloser
	last bool // the connection has no further call

	reading sync.Mutex // held by who reads or ends
	ended   error      // io.EOF when all was read
}

func (b *body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.ended != nil {
		return 0, b.ended
	}
	n, err := b.from.Read(p)
	if err == nil {
		return n, nil
	}
	ctx := b.request.Context()
	if err != io.EOF && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	b.finish(err)
	return n, err
}

// Close gives up what was not read. It ends a Read that waits.
func (b *body) Close() error {
	if !b.reading.TryLock() {
		b.interrupt()
		b.reading.Lock()
	}
	defer b.reading.Unlock()
	if b.ended == nil {
		b.finish(errClosed)
	}
	return nil
}

var errClosed = errors.New("the body was closed")

func (b *body) finish(how error) {
	b.ended = how
	_ = b.end(how == io.EOF && !b.last)
}

// interrupt gives a call up that is still under way.
func (e *exchange) interrupt() {
	e.conn.mu.Lock()
	defer e.conn.mu.Unlock()
	if !e.over {
		e.conn.cutOff()
	}
}
