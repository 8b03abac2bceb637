package sessions

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"
)

// A Seal makes values that name a session and that only its holder can make, so
// that whoever knows an id does not thereby hold its cookie, and so that the id can
// still be named when the session is gone. Two Seals do not know each other's
// values.
type Seal struct{ key []byte }

// NewSeal makes a Seal with a fresh key: the values of an earlier process are not
// recognised.
func NewSeal() Seal {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // documented never to fail
	return Seal{key: key}
}

// A Claim is what a request shows to be let to a session.
type Claim struct {
	ID      string // the session that it names
	Genuine bool   // it was made under the seal
	Proof   Proof
}

// A Proof is the hash of a value that names a session, by which one of another seal
// is known again. The zero Proof is of none.
type Proof [sha256.Size]byte

// NewProof is the proof of a value.
func NewProof(value string) Proof { return sha256.Sum256([]byte(value)) }

// RestoreProof is a proof that was saved; of none when that is empty.
func RestoreProof(hash []byte) (p Proof) {
	copy(p[:], hash)
	return p
}

// Hash is what is saved of a proof, nil when it is of none.
func (p Proof) Hash() []byte {
	if p == (Proof{}) {
		return nil
	}
	return p[:]
}

// Matches reports whether both are of one value. One of none matches no other.
func (p Proof) Matches(other Proof) bool {
	return p != (Proof{}) && subtle.ConstantTimeCompare(p[:], other[:]) == 1
}

// Value is the value that names a session.
func (s Seal) Value(id string) string {
	return encode([]byte(id)) + "." + encode(s.sum(id))
}

// Open reads a value. ok is false when it names no session; one that does need
// not be genuine.
func (s Seal) Open(value string) (claim Claim, ok bool) {
	encodedID, encodedSum, sealed := strings.Cut(value, ".")
	id, err := base64.RawURLEncoding.DecodeString(encodedID)
	if err != nil || !sealed {
		return Claim{}, false
	}
	sum, err := base64.RawURLEncoding.DecodeString(encodedSum)
	genuine := err == nil && hmac.Equal(sum, s.sum(string(id)))
	return Claim{ID: string(id), Genuine: genuine, Proof: NewProof(value)}, true
}

func (s Seal) sum(id string) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id))
	return mac.Sum(nil)
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
