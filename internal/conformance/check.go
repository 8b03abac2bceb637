package conformance

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Check says what in a trace is not as the case wants it, in the order in which
// it was found. None: the case has passed.
func Check(c Case, tr Trace) []string {
	k := checker{want: c.Want, trace: tr}
	if len(tr.Replies) != len(c.Requests) {
		k.complain("%d replies to %d requests", len(tr.Replies), len(c.Requests))
		return k.complaints
	}
	k.attempts()
	k.elapsed()
	k.calls()
	for i, want := range c.Want.Replies {
		k.reply(fmt.Sprintf("reply %d", i), want, tr.Replies[i])
	}
	if len(c.Requests) == 1 && c.Requests[0].path() == runPath {
		k.passedOn(c.Requests[0])
	}
	return k.complaints
}

type checker struct {
	want       Want
	trace      Trace
	complaints []string
}

func (k *checker) complain(format string, args ...any) {
	k.complaints = append(k.complaints, fmt.Sprintf(format, args...))
}

// short is the beginning of a text, for a complaint.
func short[T ~string | ~[]byte](s T) string {
	const enough = 400
	if len(s) <= enough {
		return string(s)
	}
	return strings.ToValidUTF8(string(s[:enough]), "") + "…"
}

// attempts looks at where the agent's turns went, and whether each attempt had a
// session of its own.
func (k *checker) attempts() {
	if k.want.ResponsePaths == nil {
		return
	}
	var paths []string
	sessions := map[string]bool{}
	for _, call := range k.trace.Calls {
		switch call.step() {
		case stepResponses:
			paths = append(paths, call.Path)
		case stepSeed:
			id := readValue(call.Body).get("resources_session_id").text
			if sessions[id] {
				k.complain("resources_session_id %s was used for two attempts", id)
			}
			sessions[id] = true
		}
	}
	if !slices.Equal(paths, k.want.ResponsePaths) {
		k.complain("the agent runs at %v, want %v", paths, k.want.ResponsePaths)
	}
}

func (k *checker) elapsed() {
	if least := time.Duration(k.want.MinElapsedS * float64(time.Second)); k.trace.Elapsed < least {
		k.complain("took %s, want at least %s", k.trace.Elapsed, least)
	}
}

func (k *checker) calls() {
	got := make([]string, len(k.trace.Calls))
	for i, call := range k.trace.Calls {
		got[i] = string(call.step())
	}
	if k.want.Steps != nil {
		if !k.stepsMatch(got) {
			k.complain("calls %v, want %v", got, k.want.Steps)
		}
		return
	}
	want := make([]string, len(k.want.Calls))
	for i, call := range k.want.Calls {
		want[i] = string(stepOf(call.Path))
	}
	if !slices.Equal(got, want) {
		k.complain("calls %v, want %v", got, want)
		return
	}
	for i, call := range k.trace.Calls {
		k.call(fmt.Sprintf("call %d %s", i, got[i]), k.want.Calls[i], call)
	}
}

func (k *checker) stepsMatch(got []string) bool {
	if len(k.want.Replies) > 1 { // the calls of two episodes interleave
		return slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(k.want.Steps)))
	}
	var pattern strings.Builder
	for _, s := range k.want.Steps {
		name, times := s, ""
		if few, ok := strings.CutSuffix(s, "*"); ok {
			name, times = few, "{1,4}"
		} else if perhaps, ok := strings.CutSuffix(s, "?"); ok {
			name, times = perhaps, "?"
		}
		pattern.WriteString("(?:" + regexp.QuoteMeta(name) + " )" + times)
	}
	calls := strings.Join(got, " ")
	if calls != "" {
		calls += " "
	}
	return regexp.MustCompile("^" + pattern.String() + "$").MatchString(calls)
}

func (k *checker) call(where string, want WantCall, got Call) {
	if want.Server != got.Server || want.Method != got.Method || want.Path != got.Path {
		k.complain("%s: %s %s on %s, want %s %s on %s", where, got.Method, got.Path, got.Server, want.Method, want.Path, want.Server)
	}
	wire := got.cookies()
	if plain := plainCookies(wire); !maps.Equal(want.Cookies, plain) {
		k.complain("%s: cookies %v, want %v", where, plain, want.Cookies)
	}
	for name, v := range want.Wire {
		if wire[name] != v {
			k.complain("%s: cookie %s on the wire is %s, want it as it came, %s", where, name, wire[name], v)
		}
	}
	if got.Unread {
		return
	}
	if body := k.trace.normal(got.Body); !same(readValue(want.Body), body) {
		k.complain("%s: body %s, want %s", where, short(body.compact()), short(readValue(want.Body).compact()))
	}
}

func (k *checker) reply(where string, want WantReply, got Reply) {
	if want.Disconnected {
		return
	}
	if got.Err != nil {
		k.complain("%s: none came: %v", where, got.Err)
		return
	}
	if !slices.Contains(want.Status, got.Status) {
		k.complain("%s: status %d, want %v: %s", where, got.Status, want.Status, short(got.Body))
		return
	}
	body := k.trace.normal(got.Body)
	for _, loc := range want.Locs {
		if !slices.ContainsFunc(body.get("detail").elements, func(fault value) bool { return fault.get("loc").begins(loc) }) {
			k.complain("%s: no fault at %s: %s", where, loc, short(got.Body))
		}
	}
	for _, words := range want.TextHas {
		if !strings.Contains(string(got.Body), words) && !body.says(words) {
			k.complain("%s: lacks %q: %s", where, words, short(got.Body))
		}
	}
	if want.JSON != nil && !same(*want.JSON, body) {
		k.complain("%s: body %s, want %s", where, short(got.Body), short(want.JSON.compact()))
	}
	if want.Result != nil || want.Failure != nil {
		k.episode(where, want, body)
	}
}

// begins reports whether an array begins with the given elements.
func (v value) begins(prefix valueList) bool {
	return len(v.elements) >= len(prefix) && slices.EqualFunc(v.elements[:len(prefix)], prefix, same)
}

// says reports whether a name or a text within the value has the words.
func (v value) says(words string) bool {
	if strings.Contains(v.text, words) || slices.ContainsFunc(v.elements, func(e value) bool { return e.says(words) }) {
		return true
	}
	return slices.ContainsFunc(v.members, func(m member) bool { return strings.Contains(m.name, words) || m.value.says(words) })
}

func (l valueList) String() string {
	texts := make([]string, len(l))
	for i, v := range l {
		texts[i] = v.raw
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func (k *checker) episode(where string, want WantReply, body value) {
	var names []string
	for _, m := range body.members {
		names = append(names, m.name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"episode_id", "failure", "result", "task_id"}) {
		k.complain("%s: keys %v, want episode_id, task_id, result and failure: %s", where, names, short(body.compact()))
		return
	}
	result, failure := body.get("result"), body.get("failure")
	if want.Failure != nil {
		if failure.kind != kindObject || !result.null() {
			k.complain("%s: no failure: %s", where, short(body.compact()))
			return
		}
		k.failure(where, *want.Failure, failure)
		return
	}
	if result.kind != kindObject || !failure.null() {
		k.complain("%s: no result: %s", where, short(body.compact()))
		return
	}
	if want.Result.text != "any" && !same(*want.Result, result) {
		k.complain("%s: result %s, want %s", where, short(result.compact()), short(want.Result.compact()))
	}
}

const maxReason = 2000 // characters

// secret finds the values that only our cookies and headers have in the cases.
var secret = regexp.MustCompile(`res-cookie|agent-cookie|tok\.en`)

func (k *checker) failure(where string, want WantFailure, got value) {
	reason := got.get("failure_reason")
	if stage := got.get("stage"); want.Stage != nil && stage.text != *want.Stage {
		k.complain("%s: stage %s, want %s (%s)", where, stage.raw, *want.Stage, short(reason.raw))
	}
	if terminal := got.get("terminal"); want.Terminal != nil && terminal.raw != fmt.Sprint(*want.Terminal) {
		k.complain("%s: terminal %s, want %t (%s)", where, terminal.raw, *want.Terminal, short(reason.raw))
	}
	k.failureKind(where, want, got)
	if partial := got.get("partial_response"); (len(partial.members) > 0) != want.PartialResponse {
		k.complain("%s: partial_response %s, want one: %t", where, short(partial.raw), want.PartialResponse)
	}
	if length := utf8.RuneCountInString(reason.text); reason.kind != kindText || length == 0 || length > maxReason {
		k.complain("%s: failure_reason is empty or over %d characters: %s", where, maxReason, short(reason.raw))
	}
	for _, words := range want.ReasonHas {
		if !strings.Contains(reason.text, words) {
			k.complain("%s: failure_reason %q lacks %q", where, short(reason.text), words)
		}
	}
	if found := secret.FindString(reason.text); found != "" {
		k.complain("%s: failure_reason shows a secret: %q", where, found)
	}
}

func (k *checker) failureKind(where string, want WantFailure, got value) {
	for _, name := range []string{"failure_kind", "stage"} {
		if got.get(name).null() {
			k.complain("%s: %s is null, want it left out", where, name)
		}
	}
	if want.Kind == nil {
		return
	}
	wanted, kind := readValue(want.Kind), got.get("failure_kind")
	if wanted.null() && !kind.there() {
		return
	}
	if !same(wanted, kind) {
		k.complain("%s: failure_kind %s, want %s", where, kind.raw, wanted.raw)
	}
}
