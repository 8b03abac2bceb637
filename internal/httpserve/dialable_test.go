package httpserve_test

import (
	"testing"

	"example.com/turn/internal/httpserve"
)

// Which of these a listener has depends on the machine: where there is IPv6, one on
// every interface says so in IPv6.
func TestDialable(t *testing.T) {
	for address, want := range map[string]string{
		"0.0.0.0:8002":       "127.0.0.1:8002",
		":8002":              "127.0.0.1:8002",
		"[::]:8002":          "[::1]:8002",
		"192.0.2.7:8002":     "192.0.2.7:8002",
		"[2001:db8::7]:8002": "[2001:db8::7]:8002",
		"node7:8002":         "node7:8002",
		"/run/turn":          "/run/turn",
	} {
		if got := httpserve.Dialable(address); got != want {
			t.Errorf("%s is dialled as %s, want %s", address, got, want)
		}
	}
}
