package resourcesserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"example.com/turn/failures"
	"example.com/turn/servers/internal/sessions"
	"example.com/turn/servers/requests"
)

// A pass is what a request shows to be let to its session.
type pass struct {
	sessions.Claim
	shown bool             // it shows anything that names a session
	key   func(*keys) *key // the one of a restored session that it has to match
}

// cookiePass is what a request shows by its cookie.
func (s *Server) cookiePass(r *http.Request) pass {
	claim, shown := s.cookies.Find(r)
	return pass{Claim: claim, shown: shown, key: func(k *keys) *key { return &k.cookie }}
}

// tokenPass is what a request shows by a header of MCP.
func (s *Server) tokenPass(token string) pass {
	claim, shown := s.tokens.Open(token)
	return pass{Claim: claim, shown: shown, key: func(k *keys) *key { return &k.token }}
}

// keys open a restored session to those who used it before: this server's own
// seals are not those under which it was seeded.
type keys struct{ cookie, token key }

// A key is what is known of the cookie or token that opens a restored session.
type key struct {
	proof     sessions.Proof
	unclaimed bool // nobody knows its owner
}

// admits reports whether a claim matches the key. The first to come claims a
// session whose owner nobody knows. A claim under this server's own seal, which a
// repeated seed has given out, takes the place of the old one.
func (k *key) admits(claim sessions.Claim) bool {
	if claim.Genuine || k.unclaimed {
		*k = key{proof: claim.Proof}
	}
	return k.proof.Matches(claim.Proof)
}

func (p pass) opens(held *session) bool {
	if held.restored != nil {
		return p.key(held.restored).admits(p.Claim)
	}
	return p.Genuine
}

// use runs a call with the session that the pass opens. When there is none the
// error is a [gone].
func (s *Server) use(ctx context.Context, p pass, call func(context.Context, *session) error) error {
	if !p.shown {
		return unrecognised()
	}
	owner := p.Genuine
	err := s.sessions.Use(ctx, p.ID, func(ctx context.Context, held *session) error {
		if !p.opens(held) {
			return sessions.ErrStranger
		}
		owner = true
		return call(ctx, held)
	})
	switch {
	case errors.Is(err, sessions.ErrExpired) && owner:
		return &gone{id: p.ID, kind: failures.SessionExpired, reason: fmt.Sprintf("resources session %s has expired", p.ID)}
	case errors.Is(err, sessions.ErrGone) && owner:
		return &gone{id: p.ID, kind: failures.SessionLost, reason: fmt.Sprintf("resources session %s is not held here any more", p.ID)}
	case errors.Is(err, sessions.ErrExpired), errors.Is(err, sessions.ErrGone), errors.Is(err, sessions.ErrStranger):
		return unrecognised()
	case errors.Is(err, sessions.ErrShutdown):
		return requests.RefuseAs(http.StatusServiceUnavailable, failures.Shutdown, "%w", err)
	}
	return err
}

// A gone is a session that a request asks for and that is not held.
type gone struct {
	id     string // "": none that this server knows
	kind   failures.Kind
	reason string
}

func unrecognised() *gone {
	return &gone{
		kind:   failures.SessionLost,
		reason: "the request carries no session cookie that this server set: it may have been restarted",
	}
}

func (g *gone) Error() string { return g.reason }

// refusal is what a tool call is answered with.
func (g *gone) refusal() error {
	return requests.RefuseAs(http.StatusNotFound, g.kind, "%s", g.reason)
}

// verdict is what an answer is worth: nothing can be said of it, which is not 0.
func (g *gone) verdict() *verdict {
	return &verdict{Verdict: Verdict{Mask: true, Kind: g.kind, Reason: g.reason}}
}
