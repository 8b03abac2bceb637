package failures

import (
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
	values []string // longest first: one may be part of another
}

// Add makes value a secret, unless it is shorter than six characters.
func (s *Secrets) Add(value string) {
	if len(value) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := slices.BinarySearchFunc(s.values, value, func(have, want string) int {
		if len(have) != len(want) {
			return len(want) - len(have)
		}
		return strings.Compare(have, want)
	})
	if !found {
		s.values = slices.Insert(s.values, at, value)
	}
}

// Mask returns text with every secret replaced by "***". A nil s masks nothing.
func (s *Secrets) Mask(text string) string {
	if s == nil {
		return text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, value := range s.values {
		text = strings.ReplaceAll(text, value, "***")
	}
	return text
}
