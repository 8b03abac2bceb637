package protocol

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
)

// A Token is a secret that a server asks its callers for, in the header
// "Authorization: Bearer TOKEN". "": it asks for none.
//
// Printed, and encoded as text or JSON, it says "(secret)", so that no log of a
// configuration shows it: string(t) is the token itself. (Package fmt asks no field that
// is not exported how to print it: that goes for a configuration, and not for what was
// made of one.) A token of six or more characters is masked in what servers say.
type Token string

// Validate reports a token that cannot be sent. The error shows nothing of it.
func (t Token) Validate() error {
	for i := range len(t) {
		if t[i] <= ' ' || t[i] > '~' {
			return errors.New("the token must be ASCII letters, digits and signs, without white space in it")
		}
	}
	return nil
}

// Header is the value of the Authorization header that shows the token.
func (t Token) Header() string { return "Bearer " + string(t) }

// ExposedAt is the host to which the token goes in the open when a server at that base
// URL is called: over plain http, and beyond this machine. "": it does not.
func (t Token) ExposedAt(base string) (host string) {
	u, err := url.Parse(base)
	if t == "" || err != nil || u.Scheme != "http" || isLoopback(u.Hostname()) {
		return ""
	}
	return u.Host
}

func isLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// Format prints "(secret)", whatever the verb, and nothing for no token.
func (t Token) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, t.shown()) }

// MarshalText is what encoding/json and loggers print: "(secret)".
func (t Token) MarshalText() ([]byte, error) { return []byte(t.shown()), nil }

func (t Token) shown() string {
	if t == "" {
		return ""
	}
	return "(secret)"
}
