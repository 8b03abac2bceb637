package failures

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// minSecret is the length in bytes from which a secret is masked: a shorter one
// would blank out half of every reason.
const minSecret = 6

// Secrets are the cookie values, headers and tokens of one episode, so that no
// reason shows them, not even in a refusing server's own words. The zero value
// has none; it is safe for use by several goroutines.
type Secrets struct {
	mu     sync.Mutex
	values map[string]bool
	masker *strings.Replacer // of values; nil until it is needed
}

// Add makes value a secret, unless it is shorter than six characters.
func (s *Secrets) Add(value string) {
	if len(value) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values[value] {
		return
	}
	if s.values == nil {
		s.values = map[string]bool{}
	}
	s.values[value], s.masker = true, nil
}

// AddToken makes a token secret, also as a URL or a form has it.
func (s *Secrets) AddToken(token string) {
	s.Add(token)
	s.Add(url.QueryEscape(token))
	s.Add(url.PathEscape(token))
}

// Mask returns text with every secret replaced by "***". A nil s masks nothing.
func (s *Secrets) Mask(text string) string {
	if s == nil {
		return text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.masker == nil {
		s.masker = newMasker(s.values)
	}
	return s.masker.Replace(text)
}

// In reports whether a secret is part of text.
func (s *Secrets) In(text string) bool { return s.Mask(text) != text }

// newMasker masks the longer of two secrets where one begins with the other.
func newMasker(values map[string]bool) *strings.Replacer {
	longestFirst := slices.SortedFunc(maps.Keys(values), func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(values))
	for _, value := range longestFirst {
		pairs = append(pairs, value, "***")
	}
	return strings.NewReplacer(pairs...)
}
