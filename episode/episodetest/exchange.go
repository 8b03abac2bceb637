package episodetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// An exchange is one call on a link. Each of its steps that ends with the reply, or
// without one, reports whether the link can carry another call.
type exchange struct {
	link    *link
	call    *Call // in the log
	fault   Fault
	healed  <-chan struct{}
	head    []byte
	request *http.Request // the head, taken apart
	body    io.Reader     // what follows the head
}

// mostHeld is the longest body that is kept for a fault that needs all of it.
const mostHeld = 16 << 20

func (x *exchange) run() (again bool) {
	switch x.fault.Kind {
	case DropBeforeRead, ResetBeforeRead:
		x.happens()
		return x.breakOff()
	case DropBeforeForward, ResetBeforeForward, Answer, Garbage:
		return x.replace()
	case DelayBeforeForward:
		return x.forwardLate()
	case CutRequest:
		return x.cutRequest()
	case Duplicate:
		return x.duplicate()
	}
	return x.forward()
}

// forward passes the request on as it comes, and the reply while it does.
func (x *exchange) forward() (again bool) {
	if !x.open() {
		return false
	}
	x.link.read(x.body, x.link.server)
	return x.passReply()
}

// open sends the head of the request.
func (x *exchange) open() bool {
	if err := x.link.connect(); err != nil {
		x.fail(err)
		x.link.reset()
		return false
	}
	x.note(func(c *Call) { c.Sent++ })
	_, _ = x.link.server.Write(x.head) // an error shows where the reply is read
	return true
}

// replace has something happen in the place of the server.
func (x *exchange) replace() (again bool) {
	x.sayContinue()
	if _, err := io.Copy(io.Discard, x.body); err != nil {
		x.fail(errCallerGone)
		return false
	}
	x.happens()
	switch x.fault.Kind {
	case Answer:
		return x.answer()
	case Garbage:
		text := x.fault.Body
		if text == nil {
			text = []byte("this is not http\r\n\r\n")
		}
		_, err := x.link.caller.Write(text)
		return x.finish(err, true)
	}
	return x.breakOff()
}

func (x *exchange) answer() (again bool) {
	x.link.read(nil, io.Discard)
	response := http.Response{
		StatusCode:    x.fault.Status,
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        x.fault.Header,
		Body:          io.NopCloser(bytes.NewReader(x.fault.Body)),
		ContentLength: int64(len(x.fault.Body)),
		Request:       x.request,
	}
	if response.StatusCode == 0 {
		response.StatusCode = http.StatusOK
	}
	var text bytes.Buffer
	_ = response.Write(&text) // a buffer takes everything
	_, err := x.link.caller.Write(text.Bytes())
	return x.finish(err, x.request.Close || strings.EqualFold(x.fault.Header.Get("Connection"), "close"))
}

// forwardLate waits before it forwards. A body that is not too long is taken first:
// only behind it can be seen that the caller goes away.
func (x *exchange) forwardLate() (again bool) {
	held, whole := x.hold()
	if whole {
		x.link.read(nil, io.Discard)
	}
	x.happens()
	if !x.pause() {
		return false
	}
	if !whole {
		return x.forward()
	}
	return x.forwardHeld(held)
}

// duplicate has the server do the work twice, once after the other.
func (x *exchange) duplicate() (again bool) {
	held, whole := x.hold()
	if !whole {
		return x.forward()
	}
	x.link.read(nil, io.Discard)
	if err := x.deliver(held); err != nil {
		x.fail(err)
	} else {
		x.happens()
	}
	return x.forwardHeld(held)
}

func (x *exchange) forwardHeld(body []byte) (again bool) {
	if !x.open() {
		return false
	}
	_, _ = x.link.server.Write(body) // an error shows where the reply is read
	return x.passReply()
}

// deliver sends the request on a connection of its own, and takes the reply.
func (x *exchange) deliver(body []byte) error {
	server, err := x.link.dial()
	if err != nil {
		return err
	}
	defer server.close()
	x.note(func(c *Call) { c.Sent++ })
	_, _ = server.Write(append(bytes.Clone(x.head), body...)) // an error shows where the reply is read
	r, err := x.readReply(server, io.Discard)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r.framing.body(server.r))
	return err
}

// cutRequest forwards the beginning of the body, if there is more than that.
func (x *exchange) cutRequest() (again bool) {
	x.sayContinue()
	if !x.open() {
		return false
	}
	body := bufio.NewReader(x.body)
	_, _ = io.CopyN(x.link.server, body, x.fault.Offset) // an error shows in the next byte, or is the server's
	switch _, err := body.Peek(1); {
	case errors.Is(err, io.EOF):
		x.link.read(nil, io.Discard)
		return x.passReply()
	case err != nil:
		x.fail(errCallerGone)
		return false
	}
	x.happens()
	x.link.drop()
	return false
}

// hold reads the body of the request, and reports whether that is all of it. When it
// is not, the body can be read from its beginning again.
func (x *exchange) hold() (held []byte, whole bool) {
	x.sayContinue()
	held, err := io.ReadAll(io.LimitReader(x.body, mostHeld+1))
	if err == nil && len(held) <= mostHeld {
		return held, true
	}
	x.body = io.MultiReader(bytes.NewReader(held), x.body)
	return nil, false
}

// sayContinue asks for the body, where the caller waits for that and the server behind
// is not yet there to do it.
func (x *exchange) sayContinue() {
	if strings.EqualFold(x.request.Header.Get("Expect"), "100-continue") {
		_, _ = io.WriteString(x.link.caller, "HTTP/1.1 100 Continue\r\n\r\n")
	}
}

// A reply is the beginning of one.
type reply struct {
	head    []byte
	status  int
	framing framing
	last    bool // the connection ends with it
}

// readReply reads the head of a reply. Those of interim ones (1xx) are passed on. With
// an error it returns what there was.
func (x *exchange) readReply(server *serverConn, interim io.Writer) (reply, error) {
	if err := server.begins(); err != nil {
		return reply{}, unexpected(err)
	}
	for {
		head, err := readHead(server.r)
		if err != nil {
			return reply{head: head}, unexpected(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), x.request)
		if err != nil { // whatever that is, the caller gets all of it
			return reply{head: head, framing: framing{length: -1}, last: true}, nil
		}
		_ = response.Body.Close()
		if response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			f := framingOfReply(response, x.request.Method)
			last := response.Close || x.request.Close || !f.chunked && f.length < 0
			return reply{head, response.StatusCode, f, last}, nil
		}
		_, _ = interim.Write(head) // an error shows in the reply
	}
}

// passReply passes the reply of the server on, with the faults that belong to it.
func (x *exchange) passReply() (again bool) {
	r, err := x.readReply(x.link.server, x.link.caller)
	if err != nil {
		_, _ = x.link.caller.Write(r.head)
		return x.finish(err, true)
	}
	x.note(func(c *Call) { c.Status = r.status })
	body := r.framing.body(x.link.server.r)
	switch x.fault.Kind {
	case ShortenReply:
		return x.shorten(r, body)
	case GarbleReply:
		return x.garble(r, body)
	}
	whole := bufio.NewReader(io.MultiReader(bytes.NewReader(r.head), body))
	switch x.fault.Kind {
	case DropBeforeReply, ResetBeforeReply:
		if _, err := io.Copy(io.Discard, whole); err != nil {
			return x.finish(err, true)
		}
		x.happens()
		return x.breakOff()
	case DelayBeforeReply:
		x.happens()
		if !x.pause() {
			return false
		}
	case DelayInReply, DropInReply, ResetInReply:
		return x.passTo(x.fault.Offset, whole, r.last)
	}
	_, err = io.Copy(x.link.caller, whole)
	return x.finish(err, r.last)
}

// passTo passes a reply on up to an offset, where the fault happens if there is more.
func (x *exchange) passTo(offset int64, whole *bufio.Reader, last bool) (again bool) {
	if _, err := io.CopyN(x.link.caller, whole, offset); err != nil && !errors.Is(err, io.EOF) {
		return x.finish(err, true)
	}
	switch _, err := whole.Peek(1); {
	case errors.Is(err, io.EOF):
		return x.finish(nil, last)
	case err != nil:
		return x.finish(err, true)
	}
	x.happens()
	switch x.fault.Kind {
	case DropInReply, ResetInReply, ShortenReply:
		return x.breakOff()
	case DelayInReply:
		if !x.pause() {
			return false
		}
	case GarbleReply:
		text, _ := whole.Peek(mostGarbled)
		_, _ = x.link.caller.Write(garbled(text, 0)) // an error shows in what follows
		_, _ = whole.Discard(len(text))
	}
	_, err := io.Copy(x.link.caller, whole)
	return x.finish(err, last)
}

// garble passes a reply on with some bytes garbled. Where these may be such that the
// caller cannot find the end of the reply, the connection ends with it. The head then
// says so: a caller that does find the end could use the connection again just before
// it ends, and no run would be like another.
func (x *exchange) garble(r reply, body io.Reader) (again bool) {
	offset := x.fault.Offset - int64(len(r.head))
	if offset < 0 {
		x.happens()
		head := saysLast(garbled(r.head, int(x.fault.Offset)))
		_, err := io.Copy(x.link.caller, io.MultiReader(bytes.NewReader(head), body))
		return x.finish(err, true)
	}
	if r.framing.chunked {
		r.head, r.last = saysLast(r.head), true
	}
	whole := bufio.NewReader(io.MultiReader(bytes.NewReader(r.head), body))
	return x.passTo(int64(len(r.head))+offset, whole, r.last)
}

// mostGarbled is how many bytes are garbled.
const mostGarbled = 8

// garbled turns the bits of some bytes, which makes no text of any text.
func garbled(text []byte, from int) []byte {
	text = bytes.Clone(text)
	for i := from; i < min(from+mostGarbled, len(text)); i++ {
		text[i] ^= 0xff
	}
	return text
}

// shorten passes a reply on whose body ends early and properly. The rest of it is read,
// and the connections can carry other calls.
func (x *exchange) shorten(r reply, body io.Reader) (again bool) {
	var err error
	switch c, chunked := body.(*chunks); {
	case chunked:
		_, _ = x.link.caller.Write(r.head) // an error shows in what follows
		err = x.shortenChunks(c)
	case r.framing.length < 0:
		whole := bufio.NewReader(io.MultiReader(bytes.NewReader(r.head), body))
		return x.passTo(int64(len(r.head))+x.fault.Offset, whole, true)
	case r.framing.length <= x.fault.Offset:
		_, err = io.Copy(x.link.caller, io.MultiReader(bytes.NewReader(r.head), body))
	default:
		x.happens()
		head := withLength(r.head, x.fault.Offset)
		_, err = io.CopyN(x.link.caller, io.MultiReader(bytes.NewReader(head), body), int64(len(head))+x.fault.Offset)
		if err == nil {
			_, err = io.Copy(io.Discard, body)
		}
	}
	return x.finish(err, r.last)
}

// shortenChunks passes chunks on until one goes beyond the offset.
func (x *exchange) shortenChunks(c *chunks) error {
	for left := x.fault.Offset; ; {
		if err := c.next(); err != nil {
			return err
		}
		if c.last {
			_, err := io.Copy(x.link.caller, c)
			return err
		}
		size := c.rest - int64(len("\r\n"))
		if size > left {
			return x.endChunks(c, left)
		}
		if _, err := io.CopyN(x.link.caller, c, int64(len(c.line))+c.rest); err != nil {
			return err
		}
		left -= size
	}
}

// endChunks makes a chunk that short and the last one with anything in it.
func (x *exchange) endChunks(c *chunks, size int64) error {
	x.happens()
	c.line = nil
	if size > 0 {
		_, _ = fmt.Fprintf(x.link.caller, "%x\r\n", size) // an error shows in what follows
		if _, err := io.CopyN(x.link.caller, c, size); err != nil {
			return err
		}
		_, _ = io.WriteString(x.link.caller, "\r\n")
	}
	if _, err := io.WriteString(x.link.caller, "0\r\n\r\n"); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, c)
	return err
}

// pause waits for the fault's delay, and reports whether the link is still there.
func (x *exchange) pause() bool {
	timer := time.NewTimer(x.fault.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.healed:
	case <-x.link.ctx.Done():
		x.fail(context.Cause(x.link.ctx))
		return false
	}
	return true
}

// finish ends the call. With an error, or after the last reply, so does the connection.
func (x *exchange) finish(err error, last bool) (again bool) {
	if err != nil {
		x.fail(err)
		x.link.breakOff(err)
		return false
	}
	if last {
		x.link.drop()
		return false
	}
	return true
}

// breakOff ends the caller's connection as the fault says.
func (x *exchange) breakOff() (again bool) {
	if x.fault.Kind.resets() {
		x.link.reset()
	} else {
		x.link.drop()
	}
	return false
}

// fail notes what went wrong besides the fault.
func (x *exchange) fail(err error) {
	if cause := context.Cause(x.link.ctx); cause != nil {
		err = cause
	}
	x.note(func(c *Call) { c.Err = err })
}

func (x *exchange) note(change func(*Call)) { x.link.proxy.note(x.call, change) }

func (x *exchange) happens() { x.link.proxy.happens(x.call) }
