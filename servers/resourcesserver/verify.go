package resourcesserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/requests"
)

// verify is call 6. It finds its session by the cookie alone. A session that is
// gone is no error, since the driver could do nothing about it, and not a plain
// 0, which would count against the model: it is a masked sample.
func (s *Server) verify(w http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	body, err := jsonapi.ReadObject(w, r, s.limit)
	if err != nil {
		return nil, err
	}
	answer, err := readAnswer(body)
	if err != nil {
		return nil, err
	}
	given, err := s.verdictOn(r, body, answer)
	if lost := new(gone); errors.As(err, &lost) {
		s.logger.Warn().Str("session", lost.id).Str("failure_kind", string(lost.kind)).
			Msg("an answer came for a session that is gone: its sample is masked")
		return answer.reply(lost.verdict()), nil
	}
	if err != nil {
		return nil, asRefusal(err, failures.VerifierError, "the verifier failed")
	}
	return answer.reply(given), nil
}

// verdictOn is the verdict on an answer. It ends a session of an agent's own.
func (s *Server) verdictOn(r *http.Request, body []byte, answer Answer) (given *verdict, err error) {
	p := s.cookiePass(r)
	err = s.use(r.Context(), p, func(ctx context.Context, held *session) error {
		given, err = held.judge(body, func() (Verdict, error) {
			return s.environment.verify(ctx, held.state, answer)
		})
		if err == nil && held.agentRun {
			s.sessions.End(p.ID)
		}
		return err
	})
	ended := s.ended(r.Context(), p)
	if lost := new(gone); ended != nil && errors.As(err, &lost) {
		return s.verdictAgain(r.Context(), ended, body, answer, lost)
	}
	return given, err
}

func readAnswer(body []byte) (Answer, error) {
	fields := requests.Read(body, "body")
	response := fields.Object("response")
	response.Array("output")
	answer := Answer{
		Data:     fields.Rest("responses_create_params", "response"),
		Params:   fields.Raw("responses_create_params"),
		Response: response.JSON(),
	}
	return answer, fields.Err()
}

// A verdict is a Verdict that can be sent, with the hash of the body that it is
// about. It does not hold the body itself, which may be megabytes a session.
type verdict struct {
	Verdict
	about [sha256.Size]byte
	extra []rawjson.Member // Verdict.Extra, by name
}

// judge gives the verdict on a body: the one given before when it is the same
// body, so that a verify whose reply was lost can be sent again. The session's
// lock is held.
func (s *session) judge(body []byte, score func() (Verdict, error)) (*verdict, error) {
	about := sha256.Sum256(body)
	if s.verdict != nil && s.verdict.about == about {
		return s.verdict, nil
	}
	scored, err := score()
	if err != nil {
		return nil, err
	}
	given, err := scored.check()
	if err != nil {
		return nil, err
	}
	given.about = about
	s.verdict = given
	return given, nil
}

// check makes sure that a verdict can be sent.
func (v Verdict) check() (*verdict, error) {
	if math.IsNaN(v.Reward) || math.IsInf(v.Reward, 0) {
		return nil, fmt.Errorf("the reward %v is not finite", v.Reward)
	}
	var extra []rawjson.Member
	for _, name := range slices.Sorted(maps.Keys(v.Extra)) {
		if slices.Contains(verdictNames, name) {
			return nil, fmt.Errorf("the verdict has an extra member of the name %s", name)
		}
		value, err := jsonapi.Marshal(v.Extra[name])
		if err != nil {
			return nil, fmt.Errorf("the verdict's %s: %w", name, err)
		}
		extra = append(extra, rawjson.Member{Name: name, Key: rawjson.AppendText(nil, name), Value: value})
	}
	return &verdict{Verdict: v, extra: extra}, nil
}

// reply is the verify response: the answer as it came, and the verdict.
func (a Answer) reply(v *verdict) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Value("responses_create_params", a.Params)
	w.Value("response", a.Response)
	w.Append("reward", v.appendReward)
	w.Bool("mask_sample", v.Mask)
	w.Append("failure_kind", textOrNull(string(v.Kind)))
	w.Append("failure_reason", textOrNull(v.Reason))
	for _, member := range v.extra {
		w.Member(member)
	}
	return w.End()
}

func (v Verdict) appendReward(dst []byte) []byte {
	return strconv.AppendFloat(dst, v.Reward, 'g', -1, 64)
}

func textOrNull(text string) func([]byte) []byte {
	return func(dst []byte) []byte {
		if text == "" {
			return append(dst, "null"...)
		}
		return rawjson.AppendText(dst, text)
	}
}
