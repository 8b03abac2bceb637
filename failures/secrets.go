package failures

import (
	"index/suffixarray"
	"net/url"
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
}

// mask stands for a secret.
const mask = "***"

// Add makes value a secret, unless it is shorter than six characters.
func (s *Secrets) Add(value string) {
	if len(value) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values == nil {
		s.values = map[string]bool{}
	}
	s.values[value] = true
}

// AddToken makes a token secret, also as a URL or a form has it.
func (s *Secrets) AddToken(token string) {
	s.Add(token)
	s.Add(url.QueryEscape(token))
	s.Add(url.PathEscape(token))
}

// Mask returns text with every secret replaced by "***", and those that overlap by one.
// A nil s masks nothing.
func (s *Secrets) Mask(text string) string { return s.mask(text, false) }

// mask masks a text. One that was cut off loses what its end has of a secret. It takes
// time that grows with the length of the text and with that of the secrets, not with
// their product: a server makes both as long as it likes.
func (s *Secrets) mask(text string, cutOff bool) string {
	if s == nil {
		return text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.values) == 0 {
		return text
	}
	found, end := s.find(text), len(text)
	if cutOff {
		end -= s.tornAtEnd(text)
	}
	var out strings.Builder
	plain := 0 // start of what is not written yet
	for at := 0; at < end; {
		if found[at] == 0 {
			at++
			continue
		}
		out.WriteString(text[plain:at] + mask)
		for secret := at + found[at]; at < secret; at++ { // one that begins within another goes with it
			secret = max(secret, at+found[at])
		}
		plain = at
	}
	out.WriteString(text[min(plain, end):end])
	return out.String()
}

// In reports whether a secret is part of text.
func (s *Secrets) In(text string) bool { return s.Mask(text) != text }

// find is the length of the longest secret that begins at each place of a text, 0 where
// none does.
func (s *Secrets) find(text string) []int {
	found := make([]int, len(text))
	index := suffixarray.New([]byte(text))
	for value := range s.values {
		for _, at := range index.Lookup([]byte(value), -1) {
			found[at] = max(found[at], len(value))
		}
	}
	return found
}

// tornAtEnd is how long the longest end of a text is with which a secret begins.
func (s *Secrets) tornAtEnd(text string) int {
	longest := 0
	for value := range s.values {
		longest = max(longest, overlap(text, value))
	}
	return longest
}

// overlap is how long the longest end of text is with which value begins (by Knuth,
// Morris and Pratt).
func overlap(text, value string) int {
	value = value[:min(len(value)-1, len(text))]
	borders := make([]int, len(value)+1) // of each beginning of value: its longest end that it begins with too
	for n, border := 1, 0; n < len(value); n++ {
		border = extend(value, borders, border, value[n])
		borders[n+1] = border
	}
	matched := 0
	for _, c := range []byte(text[len(text)-len(value):]) {
		matched = extend(value, borders, matched, c)
	}
	return matched
}

// extend is how much of value is matched when so much of it was and c comes behind.
func extend(value string, borders []int, matched int, c byte) int {
	for matched > 0 && (matched == len(value) || value[matched] != c) {
		matched = borders[matched]
	}
	if value[matched] == c {
		matched++
	}
	return matched
}
