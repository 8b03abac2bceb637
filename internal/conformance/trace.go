package conformance

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Trace is what happened when a case was played.
type Trace struct {
	Calls   []Call  // on the servers behind, in order of arrival
	Replies []Reply // to the requests, in their order
	Elapsed time.Duration
	// Addresses has a name for each host:port, under which it stands in a case.
	Addresses map[string]string
}

// A Call is one call on a server behind.
type Call struct {
	Server  string
	Method  string
	Path    string
	Cookies []string // Cookie headers as they came
	Body    []byte
	Unread  bool   // the connection was reset before the body was read
	Reply   string // what became of the reply, as package scripted says it
	Answer  []byte // the body of the reply, whether it was sent or not
}

// A Reply is what a request brought.
type Reply struct {
	Status       int
	Body         []byte
	Disconnected bool  // the caller left
	Err          error // no reply came
}

var (
	rolloutPrefix      = regexp.MustCompile(`^/ng-rollout/[^/]+(/training-token-capture)?`)
	resourcesSessionID = regexp.MustCompile(`resources-session-[0-9a-f]{32}`)
	agentSessionID     = regexp.MustCompile(`agent-session-[0-9a-f]{32}`)
)

// A step is the short name of a call.
type step string

const (
	stepSeed      step = "seed"
	stepOpen      step = "open"
	stepResponses step = "resp"
	stepAgentEnd  step = "aclose"
	stepVerify    step = "verify"
	stepClose     step = "close"
	stepAggregate step = "aggregate"
)

var steps = map[string]step{
	"/seed_session":            stepSeed,
	"/v1/agent_sessions":       stepOpen,
	"/v1/responses":            stepResponses,
	"/v1/agent_sessions/close": stepAgentEnd,
	"/verify":                  stepVerify,
	"/close_session":           stepClose,
	"/aggregate_metrics":       stepAggregate,
}

// stepOf names a path; one that no call has is its own name.
func stepOf(path string) step {
	if name, known := steps[rolloutPrefix.ReplaceAllString(path, "")]; known {
		return name
	}
	return step(path)
}

func (c Call) step() step { return stepOf(c.Path) }

// succeeded reports whether the caller was sent a success.
func (c Call) succeeded() bool {
	status, err := strconv.Atoi(c.Reply)
	return err == nil && 200 <= status && status < 300
}

// normal reads a body with what differs from run to run under the names that it
// has in a case.
func (tr Trace) normal(body []byte) value {
	s := resourcesSessionID.ReplaceAllString(string(body), "<RSID>")
	s = agentSessionID.ReplaceAllString(s, "<ASID>")
	for address, name := range tr.Addresses {
		s = strings.ReplaceAll(s, address, name)
	}
	return readValue([]byte(s))
}

var (
	cookiePair   = regexp.MustCompile(`\s*([^=;\s]+)=("(?:[^"\\]|\\.)*"|[^;]*)`)
	cookieEscape = regexp.MustCompile(`\\([0-3][0-7][0-7]|.)`)
)

// cookies are those of a call by name, as they came on the wire.
func (c Call) cookies() map[string]string {
	cookies := map[string]string{}
	for _, header := range c.Cookies {
		for _, pair := range cookiePair.FindAllStringSubmatch(header, -1) {
			cookies[pair[1]] = strings.TrimSpace(pair[2])
		}
	}
	return cookies
}

func plainCookies(wire map[string]string) map[string]string {
	plain := make(map[string]string, len(wire))
	for name, v := range wire {
		plain[name] = plainCookie(v)
	}
	return plain
}

// plainCookie is a value without the quoting that Python's http.cookies puts
// around it: quotes, and \ooo or \x within them.
func plainCookie(wire string) string {
	if len(wire) < 2 || wire[0] != '"' || wire[len(wire)-1] != '"' {
		return wire
	}
	return cookieEscape.ReplaceAllStringFunc(wire[1:len(wire)-1], func(escape string) string {
		if len(escape) < 4 {
			return escape[1:]
		}
		code, _ := strconv.ParseUint(escape[1:], 8, 8)
		return string(rune(code))
	})
}
