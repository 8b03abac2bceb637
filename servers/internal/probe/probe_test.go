package probe_test

import (
	"errors"
	"testing"

	"example.com/turn/servers/internal/probe"
)

func TestCheckURL(t *testing.T) {
	const absolute = "want an absolute URL such as http://127.0.0.1:9001"
	for url, want := range map[string]string{
		"http://127.0.0.1:9001": "",
		"https://h/base":        "",
		"127.0.0.1:9001":        absolute,
		"ftp://h":               absolute,
		"http://":               absolute,
		"http://h:port":         absolute,
		"http://u:hush@h":       "the URL must not hold a user name or password",
		"http://h?token=hush":   "the URL must not have a query or a fragment",
		"http://h#":             "the URL must not have a query or a fragment",
	} {
		got := ""
		if err := probe.CheckURL(url); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("CheckURL(%q) says %q, want %q", url, got, want)
		}
	}
}

func TestWhatOneLookFoundWrongCounts(t *testing.T) {
	wrong, skip := errors.New("wrong"), probe.Skip("who knows")
	var asSkip probe.Skip
	for _, test := range []struct {
		name       string
		looks      []error
		fails, can bool // whether it fails, and whether it can be told
	}{
		{"all well", []error{nil, nil}, false, true},
		{"one wrong", []error{nil, wrong}, true, true},
		{"one wrong, one not told", []error{skip, wrong}, true, true},
		{"one well, one not told", []error{skip, nil}, false, true},
		{"none told", []error{skip, skip}, true, false},
	} {
		err := probe.Together(test.looks...)
		if (err != nil) != test.fails || errors.As(err, &asSkip) == test.can {
			t.Errorf("%s: got %v", test.name, err)
		}
	}
}
