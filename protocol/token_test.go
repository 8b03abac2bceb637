package protocol_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"example.com/turn/protocol"
)

// Nothing that prints a configuration shows a token.
func TestATokenIsNotPrinted(t *testing.T) {
	config := struct {
		URL   string
		Token protocol.Token
	}{"http://h", "t0p-s3cret"}
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{string(encoded), fmt.Sprint(config.Token), fmt.Sprint(config)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T and %[1]v"} {
		texts = append(texts, fmt.Sprintf(verb, config.Token), fmt.Sprintf(verb, config), fmt.Sprintf(verb, &config))
	}
	for _, text := range texts {
		if strings.Contains(text, "t0p") || strings.Contains(text, fmt.Sprintf("%x", "t0p")) || strings.Contains(text, fmt.Sprintf("%X", "t0p")) {
			t.Errorf("printed: %s", text)
		}
		if !strings.Contains(text, "(secret)") {
			t.Errorf("it is not said that there is a token: %s", text)
		}
	}
	if got := fmt.Sprintf("%v%+v", protocol.Token(""), struct{ T protocol.Token }{}); got != "{T:}" {
		t.Errorf("no token is printed as %s", got)
	}
}

func TestWhichTokensCanBeSent(t *testing.T) {
	for _, token := range []protocol.Token{"", "x", "eyJhbGciOi.J9-_~+/=", `!"#$%&'()*,:;<>?@[\]^{|}`} {
		if err := token.Validate(); err != nil {
			t.Errorf("%q: %v", string(token), err)
		}
	}
	for _, token := range []protocol.Token{"Bearer abc", "abc\n", "a\tb", "a\x00b", "a\x7fb", "tökén", "\ufeffabc", "a\u00a0b"} {
		if err := token.Validate(); err == nil || strings.Contains(err.Error(), string(token[1:])) {
			t.Errorf("%q: %v", string(token), err)
		}
	}
}

func TestWhereATokenGoesInTheOpen(t *testing.T) {
	for base, want := range map[string]string{
		"http://10.0.0.5:9001":         "10.0.0.5:9001",
		"http://weather/a":             "weather",
		"http://[2001:db8::1]:9001":    "[2001:db8::1]:9001",
		"http://localhost.example.com": "localhost.example.com",
		"https://10.0.0.5:9001":        "",
		"http://127.0.0.1:9001":        "",
		"http://127.8.9.1":             "",
		"http://[::1]:9001":            "",
		"http://LocalHost:9001":        "",
	} {
		if got := protocol.Token("t0p-s3cret").ExposedAt(base); got != want {
			t.Errorf("%s: %q, want %q", base, got, want)
		}
		if got := protocol.Token("").ExposedAt(base); got != "" {
			t.Errorf("no token goes to %s", got)
		}
	}
}
