//go:build unix

package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The code that embedding.md prints is that of the example, which is compiled and run.
func TestThePrintedCodeIsTheExamples(t *testing.T) {
	page, err := os.ReadFile("embedding.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../examples/embed/main.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(blocks) == 0 {
		t.Fatal("it prints no code")
	}
	for _, block := range blocks {
		if !strings.Contains(string(example), block[1]) {
			t.Errorf("the example has no\n%s", block[1])
		}
	}
}
