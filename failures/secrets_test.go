package failures_test

import (
	"sync"
	"testing"

	"example.com/turn/failures"
)

func TestMask(t *testing.T) {
	for _, test := range []struct {
		name    string
		secrets []string
		text    string
		want    string
	}{
		{"no secrets", nil, "abcdef", "abcdef"},
		{"every place", []string{"abcdef"}, "abcdef, xabcdefx abcdefabcdef", "***, x***x ******"},
		{"five characters are no secret", []string{"abcde", ""}, "abcde", "abcde"},
		{"six are", []string{"abcdef"}, "abcdef abcdeg", "*** abcdeg"},
		{"the longer of two goes first", []string{"abcdef", "0abcdef9"}, "0abcdef9 abcdef", "*** ***"},
		{"in either order", []string{"0abcdef9", "abcdef"}, "0abcdef9 abcdef", "*** ***"},
		{"the beginning of another", []string{"abcdef", "abcdefgh"}, "abcdefgh abcdef", "*** ***"},
		{"each the beginning of the next", []string{"secret-1", "secret-12", "secret-123", "secret-1234", "secret-12345"}, "secret-12345 secret-1234 secret-123 secret-12 secret-1", "*** *** *** *** ***"},
		{"several of one length", []string{"cccccc", "aaaaaa", "bbbbbb", "aaaaaa"}, "aaaaaa bbbbbb cccccc", "*** *** ***"},
		{"two that overlap", []string{"abcdefgh", "efghijkl", "ijklmnop"}, "abcdefghijklmnop abcdefgh", "*** ***"},
		{"case counts", []string{"abcdef"}, "ABCDEF", "ABCDEF"},
		{"no pattern", []string{"a.c(ef"}, "abcdef a.c(ef", "abcdef ***"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var secrets failures.Secrets
			for _, value := range test.secrets {
				secrets.Add(value)
			}
			if got := secrets.Mask(test.text); got != test.want {
				t.Errorf("Mask gives %q, want %q", got, test.want)
			}
		})
	}
	if got := (*failures.Secrets)(nil).Mask("abcdef"); got != "abcdef" {
		t.Errorf("without secrets Mask gives %q", got)
	}
}

// A token is found as it is, and as a query, a form or a path has it.
func TestATokenIsMaskedInEveryForm(t *testing.T) {
	var secrets failures.Secrets
	secrets.AddToken("ab+/cd==")
	const text = "Bearer ab+/cd==, access_token=ab%2B%2Fcd%3D%3D, /t/ab+%2Fcd==/x"
	if got, want := secrets.Mask(text), "Bearer ***, access_token=***, /t/***/x"; got != want {
		t.Errorf("Mask gives %q, want %q", got, want)
	}
	if !secrets.In(text) || secrets.In("nothing of it") || (*failures.Secrets)(nil).In(text) {
		t.Error("what has a secret in it is not known")
	}
}

func TestSecretsAreSafeForConcurrentUse(t *testing.T) {
	var secrets failures.Secrets
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i := range 100 {
				secrets.Add("secret-" + string(rune('a'+i%26)))
				secrets.Mask("secret-a")
			}
		})
	}
	wait.Wait()
	if got := secrets.Mask("secret-a secret-z"); got != "*** ***" {
		t.Errorf("Mask gives %q", got)
	}
}
