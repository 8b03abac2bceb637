package fulltext

import (
	"regexp"
	"strings"
)

// word is a run of letters, or a number with its separators.
var word = regexp.MustCompile(`\p{N}+(?:[.,]\p{N}+)*|[\p{L}\p{M}]+`)

// Words are the words of a text as they are compared: in lower case, without the
// plural's "s", numbers without the commas of their groups, and without the words
// that every text has.
func Words(text string) []string {
	var words []string
	for _, found := range word.FindAllString(strings.ToLower(text), -1) {
		if common[found] {
			continue
		}
		words = append(words, singular(strings.ReplaceAll(found, ",", "")))
	}
	return words
}

// singular is rough: it only has to do the same to texts and queries.
func singular(word string) string {
	if len(word) < 4 || strings.HasSuffix(word, "ss") {
		return word
	}
	return strings.TrimSuffix(word, "s")
}

// common are left out: they say nothing of what a text is about, and long
// paragraphs are full of them.
var common = map[string]bool{
	"a": true, "an": true, "and": true, "are": true, "as": true, "at": true, "be": true, "by": true, "did": true,
	"for": true, "from": true, "had": true, "has": true, "have": true, "how": true, "in": true, "is": true, "it": true,
	"its": true, "many": true, "much": true, "of": true, "on": true, "or": true, "s": true, "that": true, "the": true,
	"their": true, "there": true, "to": true, "was": true, "we": true, "were": true, "what": true, "which": true, "with": true,
}
