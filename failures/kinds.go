package failures

import (
	"maps"
	"slices"
)

// A Stage is the part of an episode in which it failed.
type Stage string

const (
	StageAdmission    Stage = "admission"    // before call 1
	StageSeed         Stage = "seed"         // call 1
	StageAgent        Stage = "agent"        // calls 3 and 4
	StageCleanup      Stage = "cleanup"      // call 5
	StageVerification Stage = "verification" // call 6
)

// OrUnknown is the stage as another server has named it, "" when that is no name: it
// goes to terminals and counters.
func (s Stage) OrUnknown() Stage {
	const longest = 100
	if len(s) > longest || !Kind(s).WellFormed() {
		return ""
	}
	return s
}

// A Kind classifies a failure for people and counters. It is an error, so that
// errors.Is(err, failures.TransportTimeout) works on a [Failure]. The empty kind
// is an unknown one.
type Kind string

func (k Kind) Error() string { return string(k) }

// The registered kinds.
const (
	TransportUnreachable   Kind = "transport_unreachable"
	TransportPeerDrop      Kind = "transport_peer_drop"
	TransportTimeout       Kind = "transport_timeout"
	TransportLocalResource Kind = "transport_local_resource"

	AgentRunError          Kind = "agent_run_error"
	AgentRequestFailed     Kind = "agent_request_failed"
	AgentTimeout           Kind = "agent_timeout"
	AgentCommandNotAllowed Kind = "agent_command_not_allowed"

	JudgeFailed      Kind = "judge_failed"
	JudgeUnparseable Kind = "judge_unparseable"
	VerifierError    Kind = "verifier_error"

	ProviderUnavailable    Kind = "provider_unavailable"
	ProviderQuotaExhausted Kind = "provider_quota_exhausted"
	ProviderOOMKilled      Kind = "provider_oom_killed"

	SessionLost          Kind = "session_lost"
	SessionExpired       Kind = "session_expired"
	SessionReleaseFailed Kind = "session_release_failed"

	Cancelled         Kind = "cancelled"
	KillShaped        Kind = "kill_shaped"
	Shutdown          Kind = "shutdown"
	PersistenceFailed Kind = "persistence_failed"
	CohortIncomplete  Kind = "cohort_incomplete"
)

var registered = map[Kind]bool{
	TransportUnreachable: true, TransportPeerDrop: true, TransportTimeout: true, TransportLocalResource: true,
	AgentRunError: true, AgentRequestFailed: true, AgentTimeout: true, AgentCommandNotAllowed: true,
	JudgeFailed: true, JudgeUnparseable: true, VerifierError: true,
	ProviderUnavailable: true, ProviderQuotaExhausted: true, ProviderOOMKilled: true,
	SessionLost: true, SessionExpired: true, SessionReleaseFailed: true,
	Cancelled: true, KillShaped: true, Shutdown: true, PersistenceFailed: true, CohortIncomplete: true,
}

// Kinds are the registered kinds, sorted.
func Kinds() []Kind { return slices.Sorted(maps.Keys(registered)) }

// Registered reports whether the kind is in the list above.
func (k Kind) Registered() bool { return registered[k] }

// without is the kind, unless a server has put a secret into it.
func (k Kind) without(secrets *Secrets) Kind {
	if !k.Registered() && secrets.In(string(k)) {
		return ""
	}
	return k
}

const maxKind = MaxReason

// WellFormed reports whether the kind matches ^[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)?$
// and has no more characters than a reason may have. Only such a kind is taken over from a
// server's reply.
func (k Kind) WellFormed() bool {
	if len(k) > maxKind {
		return false
	}
	start, colons := true, 0
	for i := range len(k) {
		switch c := k[i]; {
		case 'a' <= c && c <= 'z':
			start = false
		case start:
			return false
		case c == ':':
			start, colons = true, colons+1
		case c != '_' && (c < '0' || c > '9'):
			return false
		}
	}
	return !start && colons <= 1
}

// Namespaced reports whether the kind is "<owner>:<name>", which needs no
// registration.
func (k Kind) Namespaced() bool {
	for i := range len(k) {
		if k[i] == ':' {
			return k.WellFormed()
		}
	}
	return false
}
