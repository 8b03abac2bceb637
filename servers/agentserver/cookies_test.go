package agentserver_test

import (
	"net/http"
	"strings"
	"testing"

	"example.com/turn/servers/agentserver"
)

// What goes back to the resources server, and into the receipt, after a tool has
// set cookies.
func TestResourcesCookies(t *testing.T) {
	for _, test := range []struct {
		name    string
		granted string   // of the access, in JSON
		set     []string // Set-Cookie headers of the first tool call
		sent    string   // Cookie header of the second
		receipt string
	}{
		{"none", `{}`, nil, ``, `{}`},
		{"as granted", `{"s":"abc=="}`, nil, `s=abc==`, `{"s":"abc=="}`},
		{"granted with what needs quotes", `{"s":"a, \"b\";\\ é\n<"}`, nil, `s="a\054 \"b\"\073\\ \351\012<"`, `{"s":"a, \"b\";\\ é\n<"}`},
		{"another one is added", `{"s":"1"}`, []string{"t=2; Path=/; HttpOnly"}, `s=1; t=2`, `{"s":"1","t":"2"}`},
		{"the last of one name wins", `{"s":"1"}`, []string{"s=2", "s=3"}, `s=3`, `{"s":"3"}`},
		{"quotes go back as they came", `{}`, []string{`s="plain"`}, `s="plain"`, `{"s":"plain"}`},
		{"a quoted semicolon", `{}`, []string{`s="a;b"; Path=/`}, `s="a;b"`, `{"s":"a;b"}`},
		{"quoted escapes", `{}`, []string{`s="\"\\\073\9"`}, `s="\"\\\073\9"`, `{"s":"\"\\;9"}`},
		{"half of an escape", `{}`, []string{`s="a\07"`}, `s="a\07"`, `{"s":"a07"}`},
		{"a quote without its end", `{}`, []string{`s="a; Path=/`}, `s="a`, `{"s":"\"a"}`},
		{"an empty value", `{"s":"1"}`, []string{"s="}, `s=`, `{"s":""}`},
		{"an expired one by age", `{"s":"1","t":"2"}`, []string{"s=x; max-age=0; Expires=Fri, 01 Jan 2100 00:00:00 GMT"}, `t=2`, `{"t":"2"}`},
		{"an expired one by date", `{"s":"1"}`, []string{"s=x; Expires=Thu, 01 Jan 1970 00:00:00 GMT"}, ``, `{}`},
		{"one that lives by age", `{"s":"1"}`, []string{"s=x; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=60"}, `s=x`, `{"s":"x"}`},
		{"one whose date is nonsense", `{"s":"1"}`, []string{"s=x; Expires=yesterday"}, `s=x`, `{"s":"x"}`},
		{"no cookie at all", `{"s":"1"}`, []string{"nonsense", "=x"}, `s=1`, `{"s":"1"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, agentserver.Config{})
			b.tools.serve = func(w http.ResponseWriter, _ *http.Request) {
				if len(b.tools.seen()) == 1 {
					w.Header()["Set-Cookie"] = test.set
				}
			}
			b.model.replies = []string{calls("look", `{}`, "look", `{}`), says("done")}
			cookie := b.seed("a", b.access(test.granted))
			b.post("/v1/responses", cookie, `{"input":"hi"}`)
			if seen := b.tools.seen(); len(seen) != 2 || seen[1].Cookie != test.sent {
				t.Errorf("the second call sent %+v, want the cookies %s", seen, test.sent)
			}
			receipt := b.post("/v1/agent_sessions/close", cookie, closeBody("a", episode0)).Body
			if want := `"resources_cookies":` + test.receipt + `}`; !strings.HasSuffix(receipt, want) {
				t.Errorf("the receipt %s does not end in %s", receipt, want)
			}
		})
	}
}
