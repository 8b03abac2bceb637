package resourcesserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

// newSaving serves ledgers that can be saved.
func newSaving(t *testing.T, config resourcesserver.Config) *bench {
	t.Helper()
	book := &book{}
	environment := listing(book)
	environment.Save = func(l *ledger) (any, error) {
		if l.owner == "Nobody" {
			return nil, errors.New("nobody's ledger")
		}
		return map[string]any{"owner": l.owner, "lines": l.lines}, nil
	}
	environment.Restore = func(_ context.Context, saved json.RawMessage) (*ledger, error) {
		fields := requests.Read(saved)
		l := &ledger{owner: fields.Text("owner")}
		if l.owner == "Bug" {
			panic("an unknown hand")
		}
		_ = json.Unmarshal(fields.Value("lines"), &l.lines)
		return l, fields.Err()
	}
	server, err := resourcesserver.New(environment, config)
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	b.book = book
	return b
}

func (b *bench) snapshot() string {
	b.Helper()
	var saved bytes.Buffer
	if err := b.server.Snapshot(b.Context(), &saved); err != nil {
		b.Fatal(err)
	}
	return saved.String()
}

func (b *bench) restore(snapshot string) {
	b.Helper()
	if err := b.server.Restore(b.Context(), strings.NewReader(snapshot)); err != nil {
		b.Fatal(err)
	}
}

func TestARestoredSessionGoesOn(t *testing.T) {
	clock := newClock()
	old := newSaving(t, resourcesserver.Config{Clock: clock.Now, Lifetime: time.Hour})
	got := old.post("/seed_session", "", with("open sesame", seedBody("a", episode0, task0, annsData)))
	tools := offerOf(t, got.Body)
	old.post("/add", got.Cookie, `{"line":"one <two>"}`)
	verdict := old.post("/verify", got.Cookie, verifyBody)
	snapshot := old.snapshot()
	if err := old.server.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"open sesame", strings.Split(got.Cookie, "=")[1], tools.Headers["X-NeMo-Gym-Session-Token"]} {
		if strings.Contains(snapshot, secret) {
			t.Errorf("the snapshot shows %s:\n%s", secret, snapshot)
		}
	}

	clock.advance(59 * time.Minute)
	b := newSaving(t, resourcesserver.Config{Clock: clock.Now, Lifetime: 5 * time.Hour})
	b.restore(snapshot)
	b.wantOpen(1)
	b.want("the verify again", b.post("/verify", got.Cookie, verifyBody), 200, verdict.Body)
	if b.book.scored != 0 {
		t.Error("it was scored again")
	}
	b.want("a tool call", b.post("/add", got.Cookie, `{"line":"three"}`), 200, `{"last":"three","lines":2}`)
	b.wantTool(b.connect("/mcp", tools.Headers), "add", `{"line":"four"}`, false, `{"last":"four","lines":3}`)
	if other := b.post("/add", madeUp(got.Cookie), `{"line":"x"}`); other.Status != 404 {
		t.Errorf("a cookie that is made up got %+v", other)
	}
	again := b.post("/seed_session", "", with("open sesame", seedBody("a", episode0, task0, annsData)))
	b.want("a tool call with the cookie of a repeated seed", b.post("/add", again.Cookie, `{"line":"five"}`), 200, `{"last":"five","lines":4}`)
	b.want("a seed for another task", b.post("/seed_session", "", seedBody("a", episode0, task1, annsData)), 409,
		`{"detail":"resources session a is bound to another task"}`)
	if alone := b.post("/close_session", "", closeBody("a", episode0)); alone.Status != 403 {
		t.Errorf("the close by its id alone got %+v", alone)
	}
	clock.advance(time.Minute)
	b.server.Sweep(t.Context())
	b.wantOpen(0)
	if diff := cmp.Diff([]string{"Ann"}, b.book.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

func offerOf(t *testing.T, body string) offer {
	t.Helper()
	var answer struct {
		Tools offer `json:"resources_tools"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Tools
}

func TestASessionIsSavedAndRestoredTwice(t *testing.T) {
	first := newSaving(t, resourcesserver.Config{})
	cookie := first.seed("a")
	agents := first.seedAgentRun("")
	second := newSaving(t, resourcesserver.Config{})
	second.restore(first.snapshot())
	third := newSaving(t, resourcesserver.Config{})
	third.restore(second.snapshot())
	third.want("a tool call", third.post("/add", cookie, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
	for _, what := range []string{"an agent's own", "an agent's own again"} {
		third.want(what, third.post("/verify", agents, verifyBody), 200, strings.Replace(scored, "0.5", "0", 1))
		third.wantOpen(1)
	}
	if got := third.post("/verify", madeUp(agents), verifyBody); !strings.Contains(got.Body, `"failure_kind":"session_lost"`) {
		t.Errorf("a cookie that is made up got %+v", got)
	}
	if got := third.post("/seed_session", cookie, row); got.Status != 409 {
		t.Errorf("an agent-run seed with the cookie of the episode's session got %+v", got)
	}
}

func TestARestoredSessionAnswersItsSeedAgain(t *testing.T) {
	serveSandboxes := func() *bench {
		environment := (&book{}).environment()
		environment.Terms = func(*ledger) resourcesserver.Terms {
			return resourcesserver.Terms{Sandbox: json.RawMessage(`{"workdir":"<1>"}`)}
		}
		environment.Save = func(l *ledger) (any, error) { return l.owner, nil }
		environment.Restore = func(context.Context, json.RawMessage) (*ledger, error) { return &ledger{}, nil }
		server, err := resourcesserver.New(environment, resourcesserver.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return serve(t, server)
	}
	old, b := serveSandboxes(), serveSandboxes()
	first := old.post("/seed_session", "", seedBody("a", episode0, task0, annsData))
	b.restore(old.snapshot())
	again := b.post("/seed_session", "", seedBody("a", episode0, task0, annsData))
	again.Cookie = first.Cookie // they are of two servers
	if diff := cmp.Diff(first, again); diff != "" || !strings.Contains(first.Body, `"sandbox_access":{"workdir":"<1>"}`) {
		t.Errorf("the seed (-first +again):\n%s", diff)
	}
}

// A seed whose answer was lost comes again with the cookie that its caller has.
func TestAnAgentRunSeedResetsARestoredSessionTwice(t *testing.T) {
	old, b := newSaving(t, resourcesserver.Config{}), newSaving(t, resourcesserver.Config{})
	cookie := old.seedAgentRun("")
	b.restore(old.snapshot())
	b.seedAgentRun(cookie)
	again := b.seedAgentRun(cookie)
	b.wantOpen(1)
	b.want("a tool call", b.post("/add", again, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
}

// without is a snapshot whose sessions do not have a member.
func without(member, snapshot string) string {
	var lines []string
	for line := range strings.Lines(snapshot) {
		var members map[string]json.RawMessage
		_ = json.Unmarshal([]byte(line), &members)
		delete(members, member)
		text, _ := json.Marshal(members)
		lines = append(lines, string(text))
	}
	return strings.Join(lines, "\n")
}

func TestARestoredSessionWithACloseTokenIsClosedByItOrByItsCookie(t *testing.T) {
	for _, test := range []struct {
		name, token, lost string // lost: what the snapshot does not have
		cookie            func(own string) string
		status            int
	}{
		{name: "the id alone", status: 403},
		{name: "another token", token: "open sesam", status: 403},
		{name: "a cookie that is made up", cookie: madeUp, status: 403},
		{name: "a cookie that is made up, of a session without an owner", lost: "cookie_sha256", cookie: madeUp, status: 403},
		{name: "its token", token: "open sesame", status: 200},
		{name: "its cookie", cookie: func(own string) string { return own }, status: 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			old := newSaving(t, resourcesserver.Config{})
			own := old.post("/seed_session", "", with("open sesame", seedBody("a", episode0, task0, annsData))).Cookie
			b := newSaving(t, resourcesserver.Config{})
			b.restore(without(test.lost, old.snapshot()))
			cookie, body := "", closeBody("a", episode0)
			if test.cookie != nil {
				cookie = test.cookie(own)
			}
			if test.token != "" {
				body = with(test.token, body)
			}
			if got := b.post("/close_session", cookie, body); got.Status != test.status {
				t.Errorf("the close got %+v, want %d", got, test.status)
			}
		})
	}
}

// madeUp is a cookie that whoever knows the id of another can make.
func madeUp(cookie string) string { return strings.Split(cookie, ".")[0] + ".AAAA" }

func TestATokenOfMCPClaimsNoSession(t *testing.T) {
	const unknown = `{"detail":"the request carries no session cookie that this server set: it may have been restarted","failure_kind":"session_lost"}`
	old := newSaving(t, resourcesserver.Config{})
	cookie, tools := old.seedForMCP("a")
	b := newSaving(t, resourcesserver.Config{})
	b.restore(without("mcp_token_sha256", old.snapshot()))
	b.wantTool(b.connect("/mcp", tools.Headers), "add", `{"line":"x"}`, true, unknown)
	_, tools = b.seedForMCP("a")
	b.wantTool(b.connect("/mcp", tools.Headers), "add", `{"line":"one"}`, false, `{"last":"one","lines":1}`)
	b.want("a call with the cookie", b.post("/add", cookie, `{"line":"two"}`), 200, `{"last":"two","lines":2}`)
}

// The owner of a restored session learns why its call was cut, by a cookie that is
// of another seal.
func TestAnExpiryCutsACallOfARestoredSession(t *testing.T) {
	clock := newClock()
	running := make(chan struct{})
	server := func() *resourcesserver.Server {
		book := &book{}
		environment := book.environment()
		environment.Save = func(*ledger) (any, error) { return nil, nil }
		environment.Restore = func(context.Context, json.RawMessage) (*ledger, error) { return &ledger{}, nil }
		environment.Tools = []resourcesserver.Tool[*ledger]{{Name: "hang", Call: func(ctx context.Context, _ *ledger, _ json.RawMessage) (any, error) {
			close(running)
			<-ctx.Done()
			return nil, ctx.Err()
		}}}
		server, err := resourcesserver.New(environment, resourcesserver.Config{Clock: clock.Now, Lifetime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return server
	}
	old, b := serve(t, server()), serve(t, server())
	cookie := old.seed("a")
	b.restore(old.snapshot())
	var got reply
	var call sync.WaitGroup
	call.Go(func() { got = b.post("/hang", cookie, `{}`) })
	<-running
	clock.advance(time.Minute)
	b.server.Sweep(t.Context())
	call.Wait()
	b.want("the call", got, 404, expiredTool)
}

// JSON has texts that encoding/json does not keep as they are.
func TestARestoredSessionHasTheTextsOfItsCallers(t *testing.T) {
	ids := []string{"\xed\xa0\x80", "\xed\xbf\xbf", "<\u2028&>\""} // two lone surrogates
	body := func(form, id string) string {
		text := string(rawjson.AppendText(nil, id))
		return strings.NewReplacer("ID", text, "ROLLOUT", text).Replace(form)
	}
	const form = `{"resources_session_id":ID,"episode_id":{"rollout_id":ROLLOUT,"attempt":0}`
	old := newSaving(t, resourcesserver.Config{})
	old.book.verdict = &resourcesserver.Verdict{Mask: true, Kind: failures.JudgeFailed, Reason: ids[0]}
	cookies, verdicts := map[string]string{}, map[string]reply{}
	for _, id := range ids {
		cookies[id] = old.post("/seed_session", "", body(form+`,"task_id":`+task0+`,"task_data":`+annsData+`}`, id)).Cookie
		verdicts[id] = old.post("/verify", cookies[id], verifyBody)
	}
	b := newSaving(t, resourcesserver.Config{})
	b.restore(old.snapshot())
	for _, id := range ids {
		b.want("the verify again", b.post("/verify", cookies[id], verifyBody), 200, verdicts[id].Body)
		b.want("a tool call", b.post("/add", cookies[id], `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
		b.want("the close", b.post("/close_session", "", body(form+"}", id)), 200, body(`{"resources_session_id":ID}`, id))
	}
	b.wantOpen(0)
}

func TestASessionWhoseOwnerIsNotKnownIsClaimedOnce(t *testing.T) {
	old := newSaving(t, resourcesserver.Config{})
	cookie := old.seed("a")
	b := newSaving(t, resourcesserver.Config{})
	b.restore(without("cookie_sha256", old.snapshot()))
	b.want("the first to come", b.post("/add", cookie, `{"line":"one"}`), 200, `{"last":"one","lines":1}`)
	if got := b.post("/add", madeUp(cookie), `{"line":"x"}`); got.Status != 404 {
		t.Errorf("the second got %+v", got)
	}
	b.want("the first again", b.post("/add", cookie, `{"line":"two"}`), 200, `{"last":"two","lines":2}`)
}

func TestASnapshotIsCheckedWholeBeforeAnyOfItIsApplied(t *testing.T) {
	const header = `{"version":1,"environment":"ledger"}`
	const fine = `{"resources_session_id":"b","episode_id":{"rollout_id":"0-0","attempt":0},"seed":"eA==","state":{"owner":"Bob","lines":[]}}`
	for _, test := range []struct {
		name, snapshot string
		want           []string
		built          int // states that were made and must be released
	}{
		{"nothing", "", []string{"this is no snapshot"}, 0},
		{"no JSON", "ledger", []string{"this is no snapshot"}, 0},
		{"a later version", `{"version":2,"environment":"ledger"}`, []string{"of version 2, this server reads 1"}, 0},
		{"another environment", `{"version":1,"environment":"x"}`, []string{`of the environment "x", this is "ledger"`}, 0},
		{"a cut one", header + fine + fine[:40], []string{"session 2 of the snapshot: unexpected EOF"}, 0},
		{"an id that is no text", header + strings.Replace(fine, `"b"`, `5`, 1), []string{"session 1 of the snapshot: there is no text where one should be"}, 0},
		{"a stranger", header + strings.Replace(fine, "{", `{"x":1,`, 1), []string{`session 1 of the snapshot: json: unknown field "x"`}, 0},
		{"an id that is open here", header + fine + strings.Replace(fine, `"b"`, `"held"`, 1), []string{"session held is open here"}, 2},
		{"an id that is closed here", header + fine + strings.Replace(fine, `"b"`, `"closed"`, 1), []string{"session closed: the session is closed here"}, 2},
		{"an id that is there twice", header + fine + fine, []string{"session b is there twice"}, 2},
		{"a state that is none", header + fine + strings.Replace(strings.Replace(fine, `"b"`, `"c"`, 1), `"Bob"`, "5", 1), []string{"session c: owner: Input should be a valid string"}, 1},
		{"a state that is a bug", header + fine + strings.Replace(strings.Replace(fine, `"b"`, `"c"`, 1), "Bob", "Bug", 1), []string{"session c: a bug in the environment's Restore: an unknown hand"}, 1},
		{"everything wrong", header + fine + `{"resources_session_id":"","episode_id":{"rollout_id":"","attempt":0},"seed":"","cookie_sha256":"eA==","sandbox_access":[],"verdict":{"about_sha256":"","reward":1,"mask_sample":false}}`,
			[]string{"session 2 of the snapshot: it has no resources_session_id", "does not go with its id", "cookie_sha256 is no SHA-256", "sandbox_access is no object", "it has no state", "about_sha256 is no SHA-256"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newSaving(t, resourcesserver.Config{})
			b.seed("held")
			b.post("/close_session", "", closeBody("closed", episode0))
			err := b.server.Restore(t.Context(), strings.NewReader(test.snapshot))
			if err == nil {
				t.Fatal("it was restored")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
			b.wantOpen(1)
			if released := slices.Repeat([]string{"Bob"}, test.built); !slices.Equal(b.book.released, released) {
				t.Errorf("released %v, want %v", b.book.released, released)
			}
		})
	}
}

func TestAnEnvironmentThatCannotBeSavedSaysSo(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	if err := b.server.Snapshot(t.Context(), &bytes.Buffer{}); !errors.Is(err, resourcesserver.ErrNotSaved) {
		t.Errorf("the snapshot: %v", err)
	}
	if err := b.server.Restore(t.Context(), strings.NewReader("")); !errors.Is(err, resourcesserver.ErrNotSaved) {
		t.Errorf("the restore: %v", err)
	}
}

func TestASnapshotThatFailsSaysWhere(t *testing.T) {
	b := newSaving(t, resourcesserver.Config{})
	b.post("/seed_session", "", seedBody("a", episode0, task0, `{"owner":"Nobody"}`))
	if err := b.server.Snapshot(t.Context(), &bytes.Buffer{}); err == nil || err.Error() != "snapshot: session a: nobody's ledger" {
		t.Errorf("got %v", err)
	}
}
