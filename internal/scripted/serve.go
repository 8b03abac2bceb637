package scripted

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"
)

// An outcome is what became of a reply, as in [Call].
type outcome struct {
	reply      string
	callerGone bool
}

func dropped(at Drop) outcome { return outcome{reply: "drop:" + string(at)} }

// unsent is the outcome of a call whose context ended: either the caller went or
// the servers stop.
func unsent(ctx context.Context) outcome {
	return outcome{reply: "not sent", callerGone: !errors.Is(context.Cause(ctx), errStopped)}
}

func (s *Servers) serve(w http.ResponseWriter, r *http.Request, server string) {
	e, action := s.arrive(server, r)
	result := outcome{reply: "not sent"} // of a handler behind, or a Do, that panics
	defer func() { s.end(e, result) }()
	result = s.answer(w, r, e, action)
}

func (s *Servers) answer(w http.ResponseWriter, r *http.Request, e *entry, action Action) outcome {
	if action.Drop == BeforeRead {
		s.hasRead(e, nil)
		reset(w, action.AtDrop)
		return dropped(BeforeRead)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return outcome{reply: "not sent", callerGone: true}
	}
	call := s.hasRead(e, body)
	if action.Do != nil {
		action.Do(call)
	}
	out := s.replyTo(call, action, r)
	s.willAnswer(e, out.body)
	if !action.hold(r.Context()) {
		hangUp(w, nil, nil)
		return unsent(r.Context())
	}
	return action.send(w, r, out)
}

// hold waits until the reply may go, and reports whether there is still somebody
// to send it to.
func (a Action) hold(ctx context.Context) bool {
	if a.Hang {
		<-ctx.Done()
		return false
	}
	if a.Gate != nil {
		select {
		case <-a.Gate:
		case <-ctx.Done():
			return false
		}
	}
	return pause(ctx, a.DelayMs)
}

func pause(ctx context.Context, milliseconds int) bool {
	if milliseconds == 0 {
		return true
	}
	timer := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a Action) send(w http.ResponseWriter, r *http.Request, out reply) outcome {
	switch a.Drop {
	case "":
		return a.sendWhole(w, r, out)
	case Garbage:
		hangUp(w, []byte("this is not http\r\n\r\n"), a.AtDrop)
	case MidHeaders:
		hangUp(w, []byte("HTTP/1.1 200 OK\r\nContent-Ty"), a.AtDrop)
	case MidBody:
		hangUp(w, out.firstHalf(), a.AtDrop)
	default:
		hangUp(w, nil, a.AtDrop)
	}
	return dropped(a.Drop)
}

func (a Action) sendWhole(w http.ResponseWriter, r *http.Request, out reply) outcome {
	maps.Copy(w.Header(), out.header)
	w.Header().Set("Content-Length", strconv.Itoa(len(out.body)))
	w.WriteHeader(out.status)
	rest := out.body
	if a.SplitDelayMs > 0 {
		half := len(rest) / 2
		_, _ = w.Write(rest[:half]) // an error shows in the second half
		_ = http.NewResponseController(w).Flush()
		if !pause(r.Context(), a.SplitDelayMs) {
			return unsent(r.Context())
		}
		rest = rest[half:]
	}
	if _, err := w.Write(rest); err != nil {
		return outcome{reply: "not sent", callerGone: true}
	}
	return outcome{reply: strconv.Itoa(out.status)}
}

// firstHalf is the reply on the wire up to the middle of the body that its
// headers announce.
func (out reply) firstHalf() []byte {
	header := out.header.Clone()
	header.Set("Content-Length", strconv.Itoa(len(out.body)))
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", out.status, http.StatusText(out.status))
	_ = header.Write(&b) // a buffer takes everything
	b.WriteString("\r\n")
	b.Write(out.body[:len(out.body)/2])
	return b.Bytes()
}

// hangUp sends what is given in place of a reply, calls what is to be called at the
// drop, if anything, and closes the connection.
func hangUp(w http.ResponseWriter, text []byte, atDrop func()) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // it has ended already
	}
	defer func() { _ = connection.Close() }()
	_, _ = connection.Write(text)
	if atDrop != nil {
		atDrop()
	}
}

// reset closes the connection in the way that the caller sees as a reset, even
// when it has sent nothing more than its headers.
func reset(w http.ResponseWriter, atDrop func()) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = connection.Close() }()
	if atDrop != nil {
		atDrop()
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the close then sends a reset instead of an end
	}
}
