package protocol

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"example.com/turn/internal/rawjson"
)

// An EpisodeID names one attempt at one rollout.
type EpisodeID struct {
	RolloutID string `json:"rollout_id"`
	Attempt   int64  `json:"attempt"` // 0 is the first
}

// CaptureKey is the name under which model calls of the attempt are captured:
// the rollout id, with "-a<attempt>" from the second attempt on (section 1).
func (id EpisodeID) CaptureKey() string {
	if id.Attempt == 0 {
		return id.RolloutID
	}
	return id.RolloutID + "-a" + strconv.FormatInt(id.Attempt, 10)
}

func (id EpisodeID) String() string { return id.CaptureKey() }

// AppendJSON appends the id as the wire has it.
func (id EpisodeID) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"rollout_id":`...)
	dst = rawjson.AppendText(dst, id.RolloutID)
	dst = append(dst, `,"attempt":`...)
	dst = strconv.AppendInt(dst, id.Attempt, 10)
	return append(dst, '}')
}

// A TaskID names a task within its taskset.
type TaskID struct {
	Taskset string `json:"taskset"`
	TaskID  string `json:"task_id"`
}

func (id TaskID) String() string { return id.Taskset + "/" + id.TaskID }

// AppendJSON appends the id as the wire has it.
func (id TaskID) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"taskset":`...)
	dst = rawjson.AppendText(dst, id.Taskset)
	dst = append(dst, `,"task_id":`...)
	dst = rawjson.AppendText(dst, id.TaskID)
	return append(dst, '}')
}

// MaxAttempt is the highest attempt number that a request may carry: there must be
// room for the attempts that follow it.
const MaxAttempt = 1 << 62

var (
	errNamePattern   = errors.New("must begin with a letter or digit and hold only letters, digits, '.', '_' and '-'")
	errAttemptSuffix = errors.New("must not end in -a<N>, which names an attempt")
)

// CheckName reports why s is not a name (^[A-Za-z0-9][A-Za-z0-9._-]*$), the form
// of rollout ids and of the names of tool accesses.
func CheckName(s string) error {
	for i := range len(s) {
		c := s[i]
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return errNamePattern
		}
	}
	if s == "" {
		return errNamePattern
	}
	return nil
}

// CheckRolloutID reports why s is not a rollout id: it is a name that does not
// end in "-a<N>" with N ≥ 1, for its capture key would be that of another
// rollout's attempt.
func CheckRolloutID(s string) error {
	if err := CheckName(s); err != nil {
		return err
	}
	rest := strings.TrimRight(s, "0123456789")
	digits := s[len(rest):]
	if strings.HasSuffix(rest, "-a") && strings.Trim(digits, "0") != "" {
		return errAttemptSuffix
	}
	return nil
}

// NewResourcesSessionID makes a fresh id for call 1.
func NewResourcesSessionID() string { return "resources-session-" + randomHex() }

// NewAgentSessionID makes a fresh id for call 3.
func NewAgentSessionID() string { return "agent-session-" + randomHex() }

// randomHex is 128 random bits, so that two drivers never make one id.
func randomHex() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// CheckEcho reports what is wrong with the session id that a reply gives back,
// "" when it is the one that was sent.
func CheckEcho(reply rawjson.Object, name, sent string) string {
	value, there := reply.Get(name)
	if !there {
		return "it lacks " + name
	}
	if text, ok := rawjson.Text(value); !ok || text != sent {
		return name + " is not the " + sent + " that was sent"
	}
	return ""
}
