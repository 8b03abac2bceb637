package sessions_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/turn/servers/internal/sessions"
)

func TestACookieNamesTheSessionItWasSetFor(t *testing.T) {
	for _, id := range []string{"resources-session-0123", "", "mit Umlaut ä; und \"Zeichen\"\n", "\xed\xa0\x80"} {
		cookies := sessions.NewCookies("s")
		got, ok := cookies.ID(withCookie(cookies, id))
		if !ok || got != id {
			t.Errorf("the cookie of %q names %q, %v", id, got, ok)
		}
	}
}

func TestACookieCannotBeForged(t *testing.T) {
	cookies := sessions.NewCookies("s")
	mine := cookieOf(cookies, "mine")
	theirs := cookieOf(cookies, "theirs")
	swapped := before(theirs) + "." + after(mine)
	for name, value := range map[string]string{
		"the plain id":             "theirs",
		"an id under another seal": swapped,
		"an id without a seal":     before(theirs),
		"an id with an empty seal": before(theirs) + ".",
		"another server's":         cookieOf(sessions.NewCookies("s"), "theirs"),
		"its own with a tail":      theirs + "%",
		"nothing":                  "",
		"no base64":                "%%%.%%%",
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Cookie", "s="+value)
		if id, ok := cookies.ID(r); ok {
			t.Errorf("%s is taken for the cookie of %q", name, id)
		}
	}
}

func withCookie(cookies sessions.Cookies, id string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Cookie", "other=1; s=old; s="+cookieOf(sessions.NewCookies("s"), "old")+"; s="+cookieOf(cookies, id))
	return r
}

func cookieOf(cookies sessions.Cookies, id string) string {
	w := httptest.NewRecorder()
	cookies.Set(w, id)
	return w.Result().Cookies()[0].Value
}

func before(value string) string { b, _, _ := strings.Cut(value, "."); return b }
func after(value string) string  { _, a, _ := strings.Cut(value, "."); return a }
