package resourcesserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/internal/sessions"
)

// ErrNotSaved is the error of an environment without Save and Restore.
var ErrNotSaved = errors.New("the environment's sessions cannot be saved: it has no Save and Restore")

// snapshotVersion is of the form of a snapshot: a header and the sessions, each a
// JSON object on a line of its own.
const snapshotVersion = 1

type snapshotHeader struct {
	Version     int    `json:"version"`
	Environment string `json:"environment"`
}

// A savedSession is a session in a snapshot. Of its secrets it has hashes only.
type savedSession struct {
	ID         text            `json:"resources_session_id"`
	Episode    savedEpisode    `json:"episode_id"` // zero: an agent's own
	Seed       []byte          `json:"seed"`       // what a repeated seed must repeat
	Ends       time.Time       `json:"ends_at,omitzero"`
	CloseToken []byte          `json:"close_token_sha256,omitempty"`
	Cookie     []byte          `json:"cookie_sha256,omitempty"` // none: its owner is not known
	MCPToken   []byte          `json:"mcp_token_sha256,omitempty"`
	State      json.RawMessage `json:"state"`
	Sandbox    json.RawMessage `json:"sandbox_access,omitempty"`
	Verdict    *savedVerdict   `json:"verdict,omitempty"`
}

type savedEpisode struct {
	RolloutID text  `json:"rollout_id"`
	Attempt   int64 `json:"attempt"`
}

type savedVerdict struct {
	About  []byte                     `json:"about_sha256"`
	Reward float64                    `json:"reward"`
	Mask   bool                       `json:"mask_sample"`
	Kind   failures.Kind              `json:"failure_kind,omitempty"`
	Reason text                       `json:"failure_reason,omitempty"`
	Extra  map[string]json.RawMessage `json:"extra,omitempty"`
}

// A text is a string of a caller's choice. It may have lone surrogates, which
// encoding/json replaces: two ids would become one, and one another.
type text string

// MarshalJSON is for encoding/json.
func (t text) MarshalJSON() ([]byte, error) { return rawjson.AppendText(nil, string(t)), nil }

// UnmarshalJSON is for encoding/json.
func (t *text) UnmarshalJSON(value []byte) error {
	read, ok := rawjson.Text(value)
	if !ok {
		return errors.New("there is no text where one should be")
	}
	*t = text(read)
	return nil
}

// Snapshot writes the open sessions, each as it is between two of its calls, for
// [Server.Restore] of another server of the environment. A session that is closed
// meanwhile is left out, and none is closed by it. Closed ids are not written: a
// late seed that finds another server finds its id unknown. The error is
// [ErrNotSaved], the first of the environment's Save or of w, or the cause of ctx.
func (s *Server) Snapshot(ctx context.Context, w io.Writer) error {
	if s.environment.save == nil {
		return ErrNotSaved
	}
	if err := writeLine(w, snapshotHeader{Version: snapshotVersion, Environment: s.environment.name}); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	err := s.sessions.Each(ctx, func(held sessions.Held[*session]) error {
		saved, err := s.save(held)
		if err != nil {
			return err
		}
		return writeLine(w, saved)
	})
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

func writeLine(w io.Writer, value any) error {
	line, err := jsonapi.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// save is a session as a snapshot has it. The session's lock is held.
func (s *Server) save(held sessions.Held[*session]) (savedSession, error) {
	value, err := s.environment.save(held.State.state)
	if err != nil {
		return savedSession{}, err
	}
	state, err := jsonapi.Marshal(value)
	if err != nil {
		return savedSession{}, err
	}
	keys := s.keysOf(held.ID, held.State)
	return savedSession{
		ID:         text(held.ID),
		Episode:    savedEpisode{RolloutID: text(held.Binding.Episode.RolloutID), Attempt: held.Binding.Episode.Attempt},
		Seed:       []byte(held.Binding.Seed),
		Ends:       held.Ends,
		CloseToken: held.Binding.Token.Hash(),
		Cookie:     keys.cookie.proof.Hash(),
		MCPToken:   keys.token.proof.Hash(),
		State:      state,
		Sandbox:    held.State.terms.Sandbox,
		Verdict:    held.State.verdict.save(),
	}, nil
}

// keysOf are the hashes of what opens a session.
func (s *Server) keysOf(id string, held *session) keys {
	if held.restored != nil {
		return *held.restored
	}
	return keys{
		cookie: key{proof: sessions.NewProof(s.cookies.Value(id))},
		token:  key{proof: sessions.NewProof(s.tokens.Value(id))},
	}
}

func (v *verdict) save() *savedVerdict {
	if v == nil {
		return nil
	}
	saved := &savedVerdict{About: v.about[:], Reward: v.Reward, Mask: v.Mask, Kind: v.Kind, Reason: text(v.Reason)}
	for _, member := range v.extra {
		if saved.Extra == nil {
			saved.Extra = map[string]json.RawMessage{}
		}
		saved.Extra[member.Name] = member.Value
	}
	return saved
}

// Restore opens the sessions of a snapshot. Their callers go on with the cookies
// that they have; a session whose owner the snapshot does not name belongs to the
// first whose cookie names it. The snapshot is read and checked whole before any
// of it is applied: when the error is not nil no session was opened. It names every
// session at fault.
func (s *Server) Restore(ctx context.Context, r io.Reader) error {
	if s.environment.restore == nil {
		return ErrNotSaved
	}
	saved, err := readSnapshot(r, s.environment.name)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	all, err := s.restoreAll(ctx, saved)
	if err == nil {
		err = s.sessions.Restore(all)
	}
	if err == nil {
		return nil
	}
	errs := []error{fmt.Errorf("restore: %w", err)}
	for _, held := range all {
		errs = append(errs, s.environment.release(context.WithoutCancel(ctx), held.State.state))
	}
	return errors.Join(errs...)
}

func readSnapshot(r io.Reader, environment string) ([]savedSession, error) {
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields()
	var header snapshotHeader
	if err := decoder.Decode(&header); err != nil {
		return nil, fmt.Errorf("this is no snapshot: %w", err)
	}
	switch {
	case header.Version != snapshotVersion:
		return nil, fmt.Errorf("the snapshot is of version %d, this server reads %d", header.Version, snapshotVersion)
	case header.Environment != environment:
		return nil, fmt.Errorf("the snapshot is of the environment %q, this is %q", header.Environment, environment)
	}
	var all []savedSession
	for {
		var saved savedSession
		err := decoder.Decode(&saved)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("session %d of the snapshot: %w", len(all)+1, err)
		}
		all = append(all, saved)
	}
}

// restoreAll makes sessions of saved ones. Beside an error it returns those that it
// has made.
func (s *Server) restoreAll(ctx context.Context, saved []savedSession) ([]sessions.Held[*session], error) {
	var all []sessions.Held[*session]
	var errs []error
	for i, one := range saved {
		if err := one.check(); err != nil {
			errs = append(errs, fmt.Errorf("session %d of the snapshot: %w", i+1, err))
			continue
		}
		state, err := s.environment.restore(ctx, one.State)
		if err != nil {
			errs = append(errs, fmt.Errorf("session %s: %w", one.ID, err))
			continue
		}
		all = append(all, one.held(state))
	}
	return all, errors.Join(errs...)
}

// check reports what is wrong with a saved session.
func (s savedSession) check() error {
	var errs []error
	if s.ID == "" {
		errs = append(errs, errors.New("it has no resources_session_id"))
	}
	if own := strings.HasPrefix(string(s.ID), agentRunPrefix); own != (s.Episode == savedEpisode{}) {
		errs = append(errs, fmt.Errorf("its episode_id does not go with its id %s", s.ID))
	}
	for name, hash := range map[string][]byte{"close_token_sha256": s.CloseToken, "cookie_sha256": s.Cookie, "mcp_token_sha256": s.MCPToken} {
		if len(hash) != 0 && len(hash) != sha256.Size {
			errs = append(errs, fmt.Errorf("its %s is no SHA-256", name))
		}
	}
	if s.Sandbox != nil && !rawjson.IsObject(s.Sandbox) {
		errs = append(errs, errors.New("its sandbox_access is no object"))
	}
	if s.State == nil {
		errs = append(errs, errors.New("it has no state"))
	}
	if s.Verdict != nil && len(s.Verdict.About) != sha256.Size {
		errs = append(errs, errors.New("its verdict's about_sha256 is no SHA-256"))
	}
	return errors.Join(errs...)
}

func (s savedSession) held(state any) sessions.Held[*session] {
	cookie := sessions.RestoreProof(s.Cookie)
	return sessions.Held[*session]{
		ID: string(s.ID),
		Binding: sessions.Binding{
			Episode: protocol.EpisodeID{RolloutID: string(s.Episode.RolloutID), Attempt: s.Episode.Attempt},
			Seed:    string(s.Seed),
			Token:   sessions.RestoreCloseToken(s.CloseToken),
			Cookie:  cookie,
		},
		Ends: s.Ends,
		State: &session{
			state:   state,
			terms:   Terms{Sandbox: s.Sandbox},
			verdict: s.Verdict.restore(),
			restored: &keys{
				cookie: key{proof: cookie, unclaimed: len(s.Cookie) == 0},
				token:  key{proof: sessions.RestoreProof(s.MCPToken)}, // a cookie claims, a token does not
			},
			agentRun: s.Episode == savedEpisode{},
		},
	}
}

func (v *savedVerdict) restore() *verdict {
	if v == nil {
		return nil
	}
	extra := map[string]any{}
	for name, value := range v.Extra {
		extra[name] = value
	}
	restored, err := Verdict{Reward: v.Reward, Mask: v.Mask, Kind: v.Kind, Reason: string(v.Reason), Extra: extra}.check()
	if err != nil {
		return nil // the answer is scored anew
	}
	copy(restored.about[:], v.About)
	return restored
}
