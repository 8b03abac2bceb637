package sessions

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
)

// Cookies bind a session to a cookie. Its value is the session's id under a seal
// that only this server can make, so that whoever knows an id does not thereby
// hold its cookie, and so that the id can still be named when the session is
// gone.
type Cookies struct {
	name string
	key  []byte
}

// NewCookies makes the cookies of that name under a fresh key: those of an
// earlier process are not recognised.
func NewCookies(name string) Cookies {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // documented never to fail
	return Cookies{name: name, key: key}
}

// Set gives the caller the session's cookie. It must be the last that a seed
// does: whoever is refused must not leave with one.
func (c Cookies) Set(w http.ResponseWriter, id string) {
	http.SetCookie(w, &http.Cookie{
		Name:     c.name,
		Value:    c.seal(id),
		Path:     "/",
		HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	})
}

// ID is the id of the session whose cookie the request carries.
func (c Cookies) ID(r *http.Request) (string, bool) {
	for _, cookie := range r.CookiesNamed(c.name) {
		if id, ok := c.open(cookie.Value); ok {
			return id, true
		}
	}
	return "", false
}

func (c Cookies) seal(id string) string {
	return encode([]byte(id)) + "." + encode(c.sum(id))
}

func (c Cookies) open(value string) (string, bool) {
	encodedID, encodedSum, _ := strings.Cut(value, ".")
	id, err := base64.RawURLEncoding.DecodeString(encodedID)
	if err != nil {
		return "", false
	}
	sum, err := base64.RawURLEncoding.DecodeString(encodedSum)
	if err != nil || !hmac.Equal(sum, c.sum(string(id))) {
		return "", false
	}
	return string(id), true
}

func (c Cookies) sum(id string) []byte {
	mac := hmac.New(sha256.New, c.key)
	mac.Write([]byte(id))
	return mac.Sum(nil)
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
