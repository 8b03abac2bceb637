package sessions

import (
	"crypto/sha256"
	"crypto/subtle"
)

// A CloseToken is what is kept of the secret that a seed may carry: whoever shows
// the secret may close the session. It is a hash, so that nothing that is logged,
// dumped or saved shows the secret. The zero CloseToken is of a session without.
type CloseToken struct {
	hash [sha256.Size]byte
	set  bool
}

// NewCloseToken is the token of a secret; of none when the secret is empty.
func NewCloseToken(secret string) CloseToken {
	if secret == "" {
		return CloseToken{}
	}
	return CloseToken{hash: sha256.Sum256([]byte(secret)), set: true}
}

// RestoreCloseToken is a token whose hash was saved; of none when that is empty.
func RestoreCloseToken(hash []byte) CloseToken {
	t := CloseToken{set: len(hash) > 0}
	copy(t.hash[:], hash)
	return t
}

// Hash is the SHA-256 of the secret, nil when there is none.
func (t CloseToken) Hash() []byte {
	if !t.set {
		return nil
	}
	return t.hash[:]
}

// Required reports whether an id alone does not close the session.
func (t CloseToken) Required() bool { return t.set }

// Admits reports whether that is the secret. How long it takes says nothing about
// how much of it is right.
func (t CloseToken) Admits(secret string) bool {
	hash := sha256.Sum256([]byte(secret))
	return t.set && subtle.ConstantTimeCompare(t.hash[:], hash[:]) == 1
}
