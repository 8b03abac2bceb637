//go:build unix

package docs_test

import (
	"os"
	"regexp"
	"testing"

	"example.com/turn/failures"
)

// Troubleshooting has a section for each kind of failure that is registered, and for no
// other.
func TestEveryKindIsExplained(t *testing.T) {
	text, err := os.ReadFile("troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[failures.Kind]bool{}
	for _, heading := range regexp.MustCompile("(?m)^### `(.*)`$").FindAllSubmatch(text, -1) {
		kind := failures.Kind(heading[1])
		if !kind.Registered() {
			t.Errorf("there is no kind %s", kind)
		}
		explained[kind] = true
	}
	for _, kind := range failures.Kinds() {
		if !explained[kind] {
			t.Errorf("%s is not explained", kind)
		}
	}
}
