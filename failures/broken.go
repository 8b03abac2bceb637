package failures

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// A Limit is a time limit of ours that ran out. It is the cause of the context
// that ends the call (context.WithTimeoutCause), so that the failure can name it.
type Limit struct {
	Name  string        // "seed timeout"
	After time.Duration // how long it was
}

func (l *Limit) Error() string { return fmt.Sprintf("the %s of %s ran out", l.Name, l.After) }

// Timeout marks the limit as a time-out for code that asks errors that way.
func (l *Limit) Timeout() bool { return true }

// An EpisodeLimit is the deadline of a whole attempt; its failures read
// "Episode timed out after 30s in POST /verify".
type EpisodeLimit struct{ After time.Duration }

func (l *EpisodeLimit) Error() string { return fmt.Sprintf("Episode timed out after %s", l.After) }

// Timeout marks the limit as a time-out for code that asks errors that way.
func (l *EpisodeLimit) Timeout() bool { return true }

// A Stop is why episodes are given up from outside: the caller went away
// ([Cancelled]) or the server is going down ([Shutdown]). It is the cause of
// the context that ends them (context.WithCancelCause).
type Stop struct {
	Kind   Kind
	Reason string
}

func (s *Stop) Error() string { return s.Reason }

// CutShort reports whether the failure is only that the episode was given up from
// outside: it says nothing about the rollout.
func (f *Failure) CutShort() bool {
	var stop *Stop
	return errors.As(f.Err, &stop) || errors.Is(f.Err, context.Canceled)
}

// Interrupted is the failure of an episode that was ended, for that cause, while it
// made no call; doing says what it did instead: "while it waited for admission".
func Interrupted(stage Stage, cause error, doing string) *Failure {
	f := New(stage, "", "")
	f.Err = cause
	f.Kind, f.Reason = interruption(cause)
	f.Reason = cut(f.Reason + " " + doing)
	return f
}

// Cause is what ended a context, for [Broken] and [Interrupted]. A cause that is
// not one of this package's is kept for its words: that the context ended by being
// cancelled, or by its deadline, says what happened.
func Cause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if kind, _ := interruption(cause); kind != "" {
		return cause
	}
	return &foreignCause{state: ctx.Err(), cause: cause}
}

// A foreignCause is a cause that the caller of this project made up.
type foreignCause struct {
	state error // context.Canceled or context.DeadlineExceeded
	cause error
}

func (f *foreignCause) Error() string { return f.cause.Error() }

func (f *foreignCause) Unwrap() []error { return []error{f.state, f.cause} }

// interruption is the kind and the words of a context's cause, or no kind when
// it is not one of ours.
func interruption(cause error) (Kind, string) {
	var (
		limit   *Limit
		episode *EpisodeLimit
		stop    *Stop
		foreign *foreignCause
	)
	switch {
	case errors.As(cause, &foreign):
		kind, text := interruption(foreign.state)
		return kind, fmt.Sprintf("%s (%s)", text, foreign.cause)
	case errors.As(cause, &episode):
		return TransportTimeout, episode.Error()
	case errors.As(cause, &limit):
		return TransportTimeout, limit.Error()
	case errors.As(cause, &stop):
		return stop.Kind, stop.Reason
	case errors.Is(cause, context.Canceled):
		return Cancelled, "the episode was cancelled"
	case wraps(cause, context.DeadlineExceeded):
		return TransportTimeout, "the caller's deadline passed"
	}
	return "", ""
}

// wraps reports whether err is target or wraps it. Unlike errors.Is it does not
// ask err: the time-outs of net and net/http say that they are
// context.DeadlineExceeded, and no context has ended.
func wraps(err, target error) bool {
	for err != nil && err != target {
		err = errors.Unwrap(err)
	}
	return err != nil
}

// Broken is the failure of a call that got no whole reply. cause is what ended
// it: the cause of its context when that had ended, else the error of the
// connection. connected says whether a connection to the server was made. before
// is the error of an earlier try of the same call, nil when there was none.
func Broken(call Call, cause error, connected bool, before error) *Failure {
	f := &Failure{Stage: call.Stage, Err: cause}
	kind, reason := interruption(cause)
	if kind != "" {
		f.Kind, f.Reason = kind, fmt.Sprintf("%s in %s to %s", reason, call.What, call.Server)
	} else {
		f.Kind = TransportKind(cause, connected)
		f.Reason = fmt.Sprintf("%s did not answer %s: %s", call.Server, call.What, transportWords(f.Kind, cause))
	}
	if before != nil && !strings.HasSuffix(f.Reason, words(before)) { // it need not say it twice
		f.Reason += "; before that: " + words(before)
	}
	f.Reason = call.reason("%s", f.Reason)
	return f
}

// TransportKind classifies the error of a call whose connection failed, by what
// the operating system said and never by the error's text. connected says
// whether there was a connection: what then goes wrong in a way that has no name
// is the peer's doing.
func TransportKind(err error, connected bool) Kind {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, errno) {
			return TransportLocalResource
		}
	}
	if connected {
		// The first is a connection's, the second a transport's.
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
			return TransportTimeout
		}
		return TransportPeerDrop
	}
	return TransportUnreachable
}

func transportWords(kind Kind, err error) string {
	if kind == TransportLocalResource {
		return words(err) + " (this machine ran out of descriptors, ports or memory: lower the concurrency, or raise the limit that ulimit -n shows)"
	}
	return words(err)
}

// TLSWords say what is wrong with a server behind TLS when that is why a connection to
// it failed, else "".
func TLSWords(err error) string {
	var (
		record  tls.RecordHeaderError
		refused *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record) && record.Conn != nil: // it was the first record
		return "it does not speak TLS, and its URL begins with https"
	case errors.As(err, &unknown):
		return "its certificate is signed by an unknown authority (--ca-file FILE has it known)"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		// Its own text has the time of day: each call would have another reason.
		return fmt.Sprintf("its certificate is refused: certificate has expired or is not yet valid: it is valid from %s to %s",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &refused):
		return "its certificate is refused: " + strings.TrimPrefix(refused.Err.Error(), "x509: ")
	}
	return ""
}

// words is an error's text without the URL that net/http puts before it: a URL
// may hold a query that is nobody's business.
func words(err error) string {
	var inURL *url.Error
	for errors.As(err, &inURL) {
		err = inURL.Err
	}
	if text := TLSWords(err); text != "" {
		return text
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection ended within the reply"
	case errors.Is(err, io.EOF):
		return "the connection ended before the reply"
	}
	var malformed textproto.ProtocolError
	if errors.As(err, &malformed) { // its text quotes the header, which may be a cookie
		return "the reply's headers are not HTTP"
	}
	var (
		op   *net.OpError
		name *net.DNSError
	)
	switch {
	case errors.As(err, &op) && op.Op != "dial":
		return "the connection failed: " + op.Err.Error()
	case errors.As(err, &op), errors.As(err, &name):
		return err.Error()
	}
	// What is left is net/http's own, in wrappings that say nothing to a person.
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}
