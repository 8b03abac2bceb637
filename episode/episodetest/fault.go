package episodetest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A Kind is what goes wrong with a call. The zero Kind is nothing.
type Kind string

// The kinds, in the order of a call. To drop a connection is to end it in good
// order (a FIN: the caller reads an end of file), to reset it to break it off (an
// RST: "connection reset by peer").
//
// After garble_reply the connection carries other calls if only a body with a
// Content-Length was garbled. Otherwise the caller may be unable to find the end of the
// reply: it is dropped there, and a "Connection: close" says so.
const (
	// The request: its body is left unread, or read and not forwarded.
	DropBeforeRead     Kind = "drop_before_read"
	ResetBeforeRead    Kind = "reset_before_read"
	DropBeforeForward  Kind = "drop_before_forward"
	ResetBeforeForward Kind = "reset_before_forward"
	DelayBeforeForward Kind = "delay_before_forward" // Delay
	CutRequest         Kind = "cut_request"          // the server gets Offset bytes of the body and an end; the caller is dropped
	Duplicate          Kind = "duplicate"            // the server gets it once, and when that is answered once more; the second reply is the caller's

	// In place of the server, which does not hear of the call.
	Answer  Kind = "answer"  // Status, Header and Body
	Garbage Kind = "garbage" // Body is sent as it is, and the caller dropped

	// The reply of the server, which has done its work.
	DropBeforeReply  Kind = "drop_before_reply"
	ResetBeforeReply Kind = "reset_before_reply"
	DelayBeforeReply Kind = "delay_before_reply" // Delay
	DelayInReply     Kind = "delay_in_reply"     // Delay after Offset bytes
	DropInReply      Kind = "drop_in_reply"      // after Offset bytes
	ResetInReply     Kind = "reset_in_reply"     // after Offset bytes
	ShortenReply     Kind = "shorten_reply"      // Offset bytes of the body and a proper end: the caller cannot tell
	GarbleReply      Kind = "garble_reply"       // from Offset on all bits of up to 8 bytes are turned; see above
)

// Kinds returns every kind there is.
func Kinds() []Kind {
	return []Kind{
		DropBeforeRead, ResetBeforeRead, DropBeforeForward, ResetBeforeForward, DelayBeforeForward, CutRequest, Duplicate,
		Answer, Garbage,
		DropBeforeReply, ResetBeforeReply, DelayBeforeReply, DelayInReply, DropInReply, ResetInReply, ShortenReply, GarbleReply,
	}
}

func (k Kind) delays() bool {
	return k == DelayBeforeForward || k == DelayBeforeReply || k == DelayInReply
}

func (k Kind) resets() bool {
	return k == ResetBeforeRead || k == ResetBeforeForward || k == ResetBeforeReply || k == ResetInReply
}

func (k Kind) hasOffset() bool {
	switch k {
	case CutRequest, DelayInReply, DropInReply, ResetInReply, ShortenReply, GarbleReply:
		return true
	}
	return false
}

// A Fault is what is done to one call. The zero Fault lets it pass.
type Fault struct {
	Kind Kind

	// Offset is how many bytes pass before the fault: of the reply as it is sent,
	// status line and headers included; with ShortenReply of the reply's body as
	// it is meant, without the framing of chunks; with CutRequest of the request's
	// body as it is sent. A message that has no byte there passes whole.
	Offset int64
	// Delay of the kinds that delay. It ends early when the caller goes away, and
	// with [Proxy.Heal]; so an hour stands for a server that hangs.
	Delay time.Duration

	Status int         // of Answer; 0: 200
	Header http.Header // of Answer; its Content-Length is made
	Body   []byte      // of Answer; of Garbage, where nil is some text
}

// Validate reports every problem of the fault.
func (f Fault) Validate() error {
	var problems []error
	if f.Kind != "" && !slices.Contains(Kinds(), f.Kind) {
		problems = append(problems, fmt.Errorf("there is no fault of kind %q", f.Kind))
	}
	if f.Offset < 0 || f.Offset > 0 && !f.Kind.hasOffset() {
		problems = append(problems, fmt.Errorf("an offset of %d bytes means nothing to %q", f.Offset, f.Kind))
	}
	if f.Kind.delays() != (f.Delay > 0) || f.Delay < 0 {
		problems = append(problems, fmt.Errorf("a delay of %s means nothing to %q", f.Delay, f.Kind))
	}
	if f.Status != 0 && (f.Kind != Answer || f.Status < 200 || f.Status > 599) {
		problems = append(problems, fmt.Errorf("a status of %d means nothing to %q (200 to 599, of %q)", f.Status, f.Kind, Answer))
	}
	if f.Header != nil && f.Kind != Answer {
		problems = append(problems, fmt.Errorf("headers mean nothing to %q", f.Kind))
	}
	if f.Body != nil && f.Kind != Answer && f.Kind != Garbage {
		problems = append(problems, fmt.Errorf("a body means nothing to %q", f.Kind))
	}
	return errors.Join(problems...)
}

// String is for people: "drop_in_reply at byte 17".
func (f Fault) String() string {
	switch {
	case f.Kind == "":
		return "none"
	case f.Kind == DelayInReply:
		return fmt.Sprintf("%s of %s at byte %d", f.Kind, f.Delay, f.Offset)
	case f.Kind.delays():
		return fmt.Sprintf("%s of %s", f.Kind, f.Delay)
	case f.Kind.hasOffset():
		return fmt.Sprintf("%s at byte %d", f.Kind, f.Offset)
	case f.Kind == Answer && f.Status != 0:
		return fmt.Sprintf("%s with %d", f.Kind, f.Status)
	}
	return string(f.Kind)
}
