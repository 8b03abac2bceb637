package httpcall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/observe"
	"example.com/turn/retry"
)

// maxRedirects is how many redirects one call follows (section 4).
const maxRedirects = 3

// What is read of a refusal. Its words are few, but in JSON they may stand behind an
// echo of the whole request. (To find them takes several times the memory.)
const (
	maxRefusalBytes     = 4 << 20
	maxJSONRefusalBytes = 16 << 20
)

// sending is one call under way.
type sending struct {
	client  *Client
	call    *Call
	forward bool // what the caller is to get goes on as it came

	sends   int  // tries begun
	reached bool // the last request of the last try may have got a connection
	written bool // a byte of any try may have been written to one
	last    reply
	wait    time.Duration // before the next try
	before  error         // why the last try but one did not do
}

type reply struct {
	status int
	header http.Header
	body   []byte
	passed int64 // bytes of it that were read and not kept
}

func (r reply) success() bool { return r.status >= 200 && r.status <= 299 }

// blames reports whether the reply says that the fault is the request's.
func (r reply) blames() bool { return r.status >= 400 && r.status <= 499 }

func (c *Client) send(ctx context.Context, call *Call, forward bool) (reply, *failures.Failure) {
	s := &sending{client: c, call: call, forward: forward}
	if c.config.Observe != nil {
		return s.observed(ctx)
	}
	return s.send(ctx)
}

// observed is send, of which others are told.
func (s *sending) observed(ctx context.Context) (_ reply, failure *failures.Failure) {
	ctx, ended := s.client.config.Observe(ctx, observe.Call{Server: s.client.config.Server, Stage: s.call.Stage, What: s.call.What})
	defer func() { ended(s.called(failure)) }()
	return s.send(ctx)
}

func (s *sending) called(failure *failures.Failure) observe.Called {
	called := observe.Called{Sends: s.sends, Sent: int64(s.sends) * int64(s.call.Body.Len())}
	if failure != nil {
		called.Err = failure
		return called
	}
	called.Status, called.Received = s.last.status, s.last.passed+int64(len(s.last.body))
	return called
}

// send makes the call until it is answered or may not be sent again.
func (s *sending) send(ctx context.Context) (reply, *failures.Failure) {
	target := s.client.at(s.call.Path)
	for {
		err := s.try(ctx, target)
		if !s.again(ctx, err) {
			return s.end(ctx, err)
		}
		if !retry.Wait(ctx, s.wait) {
			return s.end(ctx, ctx.Err())
		}
	}
}

// end is what the call comes to: the last reply, or why there is none.
func (s *sending) end(ctx context.Context, err error) (reply, *failures.Failure) {
	if err == nil {
		return s.last, nil
	}
	var failure *failures.Failure
	if errors.As(err, &failure) {
		return reply{}, failure
	}
	if ctx.Err() != nil {
		err = failures.Cause(ctx)
	}
	failure = failures.Broken(s.client.Failed(s.call), err, s.reached, s.before)
	failure.Unsent = !s.written
	return reply{}, failure
}

// try is one try: the request, the redirects that it is sent on by, and the whole
// reply.
func (s *sending) try(ctx context.Context, target *url.URL) error {
	s.sends++
	var watch pool.Watch
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { s.reached = false },
		GotConn: func(info httptrace.GotConnInfo) {
			s.reached = true
			watch = pool.WatchWrites(info.Conn)
		},
	})
	for redirects := 0; ; redirects++ {
		leg, err := s.leg(ctx, target)
		if err != nil {
			return err
		}
		// A transport that does not say that it looks for a connection may have
		// sent the request over one all the same.
		s.reached = true
		response, err := s.client.config.Transport.RoundTrip(leg)
		s.reached = s.reached && !failedToDial(err)
		s.written = s.written || s.reached && (err == nil || watch.Wrote())
		if err != nil {
			return err
		}
		next, found := redirect(target, response)
		if err := s.keep(response.Header); err != nil && (found || response.StatusCode <= 299) {
			_ = response.Body.Close()
			return err
		}
		if !found || redirects == maxRedirects {
			return s.read(response)
		}
		discard(response.Body)
		target = next
	}
}

// keep takes over the cookies of a reply. Those that are too many make a failure of
// it, unless it is a refusal, which has its own words, or its session has no use for
// them any more.
func (s *sending) keep(header http.Header) error {
	if s.call.Jar == nil {
		return nil
	}
	err := s.call.Jar.MergeReply(header, s.client.config.Clock())
	if err == nil || s.call.NoReply {
		return nil
	}
	return failures.NotContract(s.client.Failed(s.call), err.Error())
}

// failedToDial reports whether an error is that of making a connection.
func failedToDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// leg is the request to one address. Its cookies are those of the jar as it is
// now: a server that redirects may have set one.
func (s *sending) leg(ctx context.Context, target *url.URL) (*http.Request, error) {
	body, err := s.call.open()
	if err != nil {
		return nil, failures.Of(fmt.Errorf("the body of %s: %w", s.call.What, err), s.call.Stage)
	}
	leg := blank.WithContext(ctx)
	leg.URL, leg.Host, leg.Header = target, target.Host, s.header(ctx)
	// A transport sends a request again by itself when not a byte of it was written,
	// as on an idle connection that the server has just closed, if it can get the body
	// anew.
	leg.Body, leg.GetBody = body, s.call.open
	leg.ContentLength = int64(s.call.Body.Len())
	if s.call.Open != nil {
		leg.ContentLength = -1 // unknown
	}
	return leg, nil
}

// blank is what all requests have in common.
var blank = &http.Request{Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}

// header is that of one request. It is the request's own: a transport of the caller's
// may add to it.
func (s *sending) header(ctx context.Context) http.Header {
	header := maps.Clone(s.client.header)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header)) // where there is a span
	if s.call.Jar != nil && !s.call.Fresh && !s.call.Jar.Empty() {
		header["Cookie"] = []string{s.call.Jar.Header()}
	}
	return header
}

// open gives the body of one send.
func (c *Call) open() (io.ReadCloser, error) {
	if c.Open != nil {
		return c.Open()
	}
	return io.NopCloser(c.Body.NewReader()), nil
}

// redirect is where a reply sends the same request on to: 307 and 308 within
// the same scheme, host and port.
func redirect(from *url.URL, response *http.Response) (*url.URL, bool) {
	if response.StatusCode != http.StatusTemporaryRedirect && response.StatusCode != http.StatusPermanentRedirect {
		return nil, false
	}
	to, err := from.Parse(response.Header.Get("Location"))
	if err != nil || response.Header.Get("Location") == "" {
		return nil, false
	}
	if to.Scheme != from.Scheme || !strings.EqualFold(to.Hostname(), from.Hostname()) || port(to) != port(from) {
		return nil, false
	}
	to.User, to.Fragment = nil, ""
	return to, true
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// read takes in the whole reply, so that a connection that fails at its last
// byte is a failed try like any other.
func (s *sending) read(response *http.Response) error {
	body := response.Body
	defer func() { _ = body.Close() }()
	s.last = reply{status: response.StatusCode, header: response.Header}
	encoding := response.Header.Get("Content-Encoding")
	encoded := encoding != "" && !strings.EqualFold(encoding, "identity")
	if s.last.status < 200 {
		return s.notAnswered()
	}
	asItCame := s.forward && (s.last.success() || s.last.blames())
	var err error
	switch {
	case asItCame:
		s.last.body, err = ReadAll(body, response.ContentLength, s.client.config.MaxReplyBytes)
	case !s.last.success():
		most := min(refusalBytes(response.Header), s.client.config.MaxReplyBytes)
		s.last.body, err = ReadAll(io.LimitReader(body, most), min(response.ContentLength, most), math.MaxInt64)
		if encoded {
			s.last.body = nil // no words that a person could read
		}
	case s.call.NoReply:
		s.last.passed, err = io.Copy(io.Discard, io.LimitReader(body, s.client.config.MaxReplyBytes))
	case encoded:
		err = failures.NotContract(s.client.Failed(s.call), fmt.Sprintf("it is encoded (%s), which was not asked for", encoding))
	default:
		s.last.body, err = ReadAll(body, response.ContentLength, s.client.config.MaxReplyBytes)
	}
	if errors.Is(err, ErrTooLarge) {
		return s.tooLarge()
	}
	return err
}

func refusalBytes(header http.Header) int64 {
	media, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	if media == "" || strings.HasSuffix(media, "json") { // or application/problem+json
		return maxJSONRefusalBytes
	}
	return maxRefusalBytes
}

// notAnswered is the failure of a reply that is none: transports pass over those
// before the last one, save a switch to another protocol. Its body is not read: that of
// net/http's is the connection itself and may never end.
func (s *sending) notAnswered() error {
	if s.last.status == http.StatusSwitchingProtocols {
		return failures.NotContract(s.client.Failed(s.call), "it switches protocols (101), which was not asked for")
	}
	return fmt.Errorf("the reply is not HTTP: its status is %03d", s.last.status)
}

func (s *sending) tooLarge() error {
	return failures.NotContract(s.client.Failed(s.call), fmt.Sprintf("it is larger than the limit of %d bytes (--max-reply-bytes)", s.client.config.MaxReplyBytes))
}

// discard empties what a redirect carries, within reason, so that its connection
// can serve the next request.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// again decides after each try whether there is another, and sets its wait. A
// wait that the context's deadline would cut short is not begun: the failure at
// hand says more than a time-out would.
func (s *sending) again(ctx context.Context, err error) bool {
	var failure *failures.Failure
	if ctx.Err() != nil || errors.As(err, &failure) {
		return false
	}
	if s.call.Patient && err != nil && failures.TransportKind(err, s.reached) == failures.TransportLocalResource {
		s.sends-- // it was none
	}
	sent := retry.Send{Sends: s.sends, Written: s.written}
	if err == nil {
		s.client.answered()
		if s.last.success() {
			return false
		}
		sent.Status, sent.After = s.last.status, failures.ParseRetryAfter(s.last.header.Get("Retry-After"), s.client.config.Clock())
	}
	wait, again := s.client.config.Resend.Next(s.call.Rule, sent)
	if again && !fits(ctx, wait) {
		// What a server asks for may be more than a close has: it is tried again
		// all the same, for nobody else will.
		sent.After = 0
		wait, again = s.client.config.Resend.Next(s.call.Rule, sent)
	}
	if !again || !fits(ctx, wait) {
		return false
	}
	if err != nil {
		s.client.broken(s.call, err, s.reached, wait)
	} else {
		err = s.client.refused(s.call, s.last)
	}
	s.wait, s.before = wait, err
	return true
}

// fits reports whether a wait ends before the context's deadline.
func fits(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > wait
}
