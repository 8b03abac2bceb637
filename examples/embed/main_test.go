package main

import (
	"strings"
	"testing"
)

func TestTheExampleRuns(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0-0 reward 1\n", "1-0 reward 1\n", "2-0 refused for good: resources server weather refused POST /seed_session with 422"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}
