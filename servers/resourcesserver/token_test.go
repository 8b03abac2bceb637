package resourcesserver_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/turn/servers/resourcesserver"
)

// with is a body with a close token.
func with(token, body string) string {
	return strings.Replace(body, "{", `{"close_token":"`+token+`",`, 1)
}

func TestASessionWithACloseTokenIsClosedByItOrByItsCookie(t *testing.T) {
	const refused = `{"detail":"resources session a is closed by its cookie or its close token, not by its id alone"}`
	for _, test := range []struct {
		name   string
		token  string
		cookie func(b *bench, own string) string
		status int
		body   string
	}{
		{name: "the id alone", status: 403, body: refused},
		{name: "another token", token: "open sesam", status: 403, body: refused},
		{name: "another session's cookie", cookie: func(b *bench, _ string) string { return b.seed("b") }, status: 403, body: refused},
		{name: "a cookie that is made up", cookie: func(*bench, string) string { return "resources_session=YQ.YQ" }, status: 403, body: refused},
		{name: "its token", token: "open sesame", status: 200, body: answerA},
		{name: "its cookie", cookie: func(_ *bench, own string) string { return own }, status: 200, body: answerA},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			b := newBench(t, resourcesserver.Config{Logger: zerolog.New(&log).Level(zerolog.DebugLevel)})
			own := b.post("/seed_session", "", with("open sesame", seedBody("a", episode0, task0, annsData))).Cookie
			cookie := ""
			if test.cookie != nil {
				cookie = test.cookie(b, own)
			}
			body := closeBody("a", episode0)
			if test.token != "" {
				body = with(test.token, body)
			}
			b.want("the close", b.post("/close_session", cookie, body), test.status, test.body)
			gone := b.post("/add", own, `{"line":"x"}`).Status == 404
			if gone != (test.status == 200) {
				t.Errorf("the session is gone: %v", gone)
			}
			if strings.Contains(log.String(), "sesam") {
				t.Errorf("the log shows the token:\n%s", log.String())
			}
		})
	}
}

func TestACloseTokenIsPartOfTheSeed(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	seed := seedBody("a", episode0, task0, annsData)
	first := b.post("/seed_session", "", with("open sesame", seed))
	if again := b.post("/seed_session", "", with("open sesame", seed)); again != first {
		t.Errorf("the repeated seed got %+v, want %+v", again, first)
	}
	const conflict = `{"detail":"resources session a is bound to another task"}`
	b.want("without the token", b.post("/seed_session", "", seed), 409, conflict)
	b.want("with another token", b.post("/seed_session", "", with("abracadabra", seed)), 409, conflict)
}

func TestACloseTokenIsNeededOnce(t *testing.T) {
	b := newBench(t, resourcesserver.Config{})
	b.post("/seed_session", "", with("open sesame", seedBody("a", episode0, task0, annsData)))
	b.want("the close", b.post("/close_session", "", with("open sesame", closeBody("a", episode0))), 200, answerA)
	b.want("the repeated close", b.post("/close_session", "", closeBody("a", episode0)), 200, answerA)
	b.seed("b")
	b.want("a close with a token that no seed had", b.post("/close_session", "", with("x", closeBody("b", episode0))), 200, `{"resources_session_id":"b"}`)
}
