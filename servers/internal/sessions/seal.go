package sessions

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
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
	Proof   [sha256.Size]byte
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
	return Claim{ID: string(id), Genuine: genuine, Proof: sha256.Sum256([]byte(value))}, true
}

func (s Seal) sum(id string) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id))
	return mac.Sum(nil)
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
