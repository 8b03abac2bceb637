package sessions

import "net/http"

// Cookies bind a session to a cookie whose value is made under a [Seal].
type Cookies struct {
	name string
	seal Seal
}

// NewCookies makes the cookies of that name under a fresh seal.
func NewCookies(name string) Cookies { return Cookies{name: name, seal: NewSeal()} }

// Set gives the caller the session's cookie. It must be the last that a seed
// does: whoever is refused must not leave with one.
func (c Cookies) Set(w http.ResponseWriter, id string) {
	http.SetCookie(w, &http.Cookie{
		Name:     c.name,
		Value:    c.Value(id),
		Path:     "/",
		HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	})
}

// Value is the value of the session's cookie.
func (c Cookies) Value(id string) string { return c.seal.Value(id) }

// ID is the id of the session whose cookie the request carries; ok is false when
// it carries none that this server set.
func (c Cookies) ID(r *http.Request) (id string, ok bool) {
	claim, ok := c.Find(r)
	return claim.ID, ok && claim.Genuine
}

// Find is the claim of the request's cookie: a genuine one if there is one, else
// the first that names a session.
func (c Cookies) Find(r *http.Request) (found Claim, ok bool) {
	for _, cookie := range r.CookiesNamed(c.name) {
		claim, named := c.seal.Open(cookie.Value)
		switch {
		case !named:
		case claim.Genuine:
			return claim, true
		case !ok:
			found, ok = claim, true
		}
	}
	return found, ok
}
