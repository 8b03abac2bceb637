package main

import "testing"

func TestOwnAddress(t *testing.T) {
	for listen, want := range map[string]string{
		"": "127.0.0.1:8002", "nonsense": "127.0.0.1:8002", ":9000": "127.0.0.1:9000", "0.0.0.0:9000": "127.0.0.1:9000",
		"[::]:9000": "[::1]:9000", "10.0.0.7:9000": "10.0.0.7:9000", "localhost:9000": "localhost:9000",
	} {
		t.Setenv("TURN_LISTEN", listen)
		if got := ownAddress(); got != want {
			t.Errorf("%q: %s, want %s", listen, got, want)
		}
	}
}
