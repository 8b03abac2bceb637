package sessions_test

import (
	"fmt"
	"strings"
	"testing"

	"example.com/turn/servers/internal/sessions"
)

func TestACloseTokenAdmitsItsSecretOnly(t *testing.T) {
	token := sessions.NewCloseToken("open sesame")
	restored := sessions.RestoreCloseToken(token.Hash())
	for secret, want := range map[string]bool{
		"open sesame":         true,
		"open sesam":          false,
		"":                    false,
		string(token.Hash()):  false,
		"open sesame\x00":     false,
		"Open sesame":         false,
		"open sesame, please": false,
	} {
		if got := token.Admits(secret); got != want {
			t.Errorf("%q is admitted: %v, want %v", secret, got, want)
		}
		if got := restored.Admits(secret); got != want {
			t.Errorf("%q is admitted by the restored token: %v, want %v", secret, got, want)
		}
	}
	if !token.Required() || token != restored {
		t.Error("the token is not required, or not the one that was saved")
	}
	if text := fmt.Sprintf("%v %+v %#v", token, token, token); strings.Contains(text, "sesame") {
		t.Errorf("printed, it shows its secret: %s", text)
	}
}

func TestNoCloseTokenAdmitsNobody(t *testing.T) {
	for name, token := range map[string]sessions.CloseToken{
		"the zero token":      {},
		"of no secret":        sessions.NewCloseToken(""),
		"restored of nothing": sessions.RestoreCloseToken(nil),
	} {
		if token.Required() || token.Admits("") || token.Hash() != nil {
			t.Errorf("%s: required %v, admits nothing %v, hash %x", name, token.Required(), token.Admits(""), token.Hash())
		}
	}
}
