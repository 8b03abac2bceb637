package cookies

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// A Jar holds the cookies of one server in one episode. It belongs to one session
// and is not safe for concurrent use.
type Jar struct {
	secrets *failures.Secrets
	cookies []cookie       // in the order of their first appearance
	live    int            // how many of them are not gone
	taken   int            // bytes of names and values, those that are gone or replaced included: see MaxBytes
	index   map[string]int // of those by name; nil while there are few
}

type cookie struct {
	name string
	wire string // the value as it goes into a Cookie header
	gone bool   // it has expired
}

// fewCookies are looked for one by one.
const fewCookies = 16

// MaxBytes is how many bytes of names and values one jar takes over from replies in
// all its time, save those that it has replaced and that are no secrets. No server reads
// that much in a Cookie header.
const MaxBytes = 1 << 20

// ErrTooMuch is the error of cookies that [MaxBytes] has no room for.
var ErrTooMuch = fmt.Errorf("its cookies have more than %d bytes, together with those set before", MaxBytes)

// NewJar makes an empty jar whose values become secrets, unless secrets is nil.
func NewJar(secrets *failures.Secrets) *Jar { return &Jar{secrets: secrets} }

// Secrets are those that the jar's values were added to.
func (j *Jar) Secrets() *failures.Secrets { return j.secrets }

// Empty reports whether there is no cookie.
func (j *Jar) Empty() bool { return j.live == 0 }

// Header is the value of the Cookie header, "" when there is none to send.
func (j *Jar) Header() string {
	var b strings.Builder
	for _, c := range j.cookies {
		if c.gone {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(c.name)
		b.WriteByte('=')
		b.WriteString(c.wire)
	}
	return b.String()
}

// Plain is the cookies as JSON has them: without quotes and escapes.
func (j *Jar) Plain() []protocol.Pair {
	pairs := make([]protocol.Pair, 0, j.live)
	for _, c := range j.cookies {
		if !c.gone {
			pairs = append(pairs, protocol.Pair{Name: c.name, Value: plainValue(c.wire)})
		}
	}
	return pairs
}

// MergeReply takes over the Set-Cookie headers of a reply, whatever its status:
// by name, the last one wins, and one that has expired already removes its name. The
// error is [ErrTooMuch] when some of them were left out.
func (j *Jar) MergeReply(header http.Header, now time.Time) (err error) {
	for _, line := range header["Set-Cookie"] {
		name, value, attributes, ok := parseSetCookie(line)
		if !ok {
			continue
		}
		if expired(attributes, now) {
			j.remove(name)
			continue
		}
		size := len(name) + len(value)
		if at := j.find(name); at >= 0 {
			if j.cookies[at].wire == value {
				continue
			}
			if j.secrets == nil { // what it replaces is kept nowhere
				size -= len(name) + len(j.cookies[at].wire)
			}
		}
		if j.taken+size > MaxBytes {
			err = ErrTooMuch
			continue
		}
		j.taken += size
		j.set(name, value)
	}
	return err
}

// Parse reads cookies from JSON: an object of strings whose names a Cookie header
// can carry, of [MaxBytes] at most.
func Parse(value []byte) ([]protocol.Pair, error) {
	pairs, err := protocol.ParsePairs(value)
	if err != nil {
		return nil, err
	}
	bytes := 0
	for _, pair := range pairs {
		if !isName(pair.Name) {
			return nil, fmt.Errorf("%.100q is not a cookie name", pair.Name)
		}
		if bytes += len(pair.Name) + len(pair.Value); bytes > MaxBytes {
			return nil, fmt.Errorf("the cookies have more than %d bytes", MaxBytes)
		}
	}
	return pairs, nil
}

// MergePlain takes over cookies that [Parse] has read. A value that the jar has
// already keeps the form it came in; another one is quoted when it needs to be.
func (j *Jar) MergePlain(pairs []protocol.Pair) {
	for _, pair := range pairs {
		if at := j.find(pair.Name); at < 0 || plainValue(j.cookies[at].wire) != pair.Value {
			j.set(pair.Name, wireValue(pair.Value))
		}
	}
}

// find is where a cookie is, -1 when the jar does not have it.
func (j *Jar) find(name string) int {
	if j.index != nil {
		if at, known := j.index[name]; known {
			return at
		}
		return -1
	}
	for i := range j.cookies {
		if j.cookies[i].name == name && !j.cookies[i].gone {
			return i
		}
	}
	return -1
}

func (j *Jar) set(name, wire string) {
	if j.secrets != nil {
		j.secrets.Add(wire)
		j.secrets.Add(plainValue(wire))
	}
	if at := j.find(name); at >= 0 {
		j.cookies[at].wire = wire
		return
	}
	j.cookies = append(j.cookies, cookie{name: name, wire: wire})
	j.live++
	switch {
	case j.index != nil:
		j.index[name] = len(j.cookies) - 1
	case len(j.cookies) > fewCookies:
		j.buildIndex()
	}
}

func (j *Jar) buildIndex() {
	j.index = make(map[string]int, 2*fewCookies)
	for i, c := range j.cookies {
		if !c.gone {
			j.index[c.name] = i
		}
	}
}

func (j *Jar) remove(name string) {
	if at := j.find(name); at >= 0 {
		j.cookies[at].gone = true
		j.live--
		delete(j.index, name)
	}
}

// parseSetCookie splits a Set-Cookie header. A quoted value may hold a
// semicolon. What has no name or no "=" is no cookie; neither is one with a
// control character, which no request could carry.
func parseSetCookie(line string) (name, value, attributes string, ok bool) {
	name, rest, ok := strings.Cut(line, "=")
	name = strings.TrimSpace(name)
	if !ok || !isName(name) {
		return "", "", "", false
	}
	rest = strings.TrimLeft(rest, " \t")
	end := quotedLen(rest)
	if end == 0 || end < len(rest) && !strings.HasPrefix(strings.TrimLeft(rest[end:], " \t"), ";") {
		end = len(rest)
		if semicolon := strings.IndexByte(rest, ';'); semicolon >= 0 {
			end = semicolon
		}
	}
	value = strings.TrimRight(rest[:end], " \t")
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
		return "", "", "", false
	}
	return name, value, rest[end:], true
}

// quotedLen is the length of the quoted string that s begins with, 0 for none.
func quotedLen(s string) int {
	if s == "" || s[0] != '"' {
		return 0
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// isName reports whether a Cookie header, and JSON, can carry the name:
// anything visible without a separator.
func isName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == ';' || r == ',' || r == '=' || r == '"' || r == 0x7F
	})
}

// expired reports whether the attributes of a Set-Cookie header put its end in
// the past. Max-Age goes before Expires (RFC 6265, section 5.3).
func expired(attributes string, now time.Time) bool {
	var byDate, byAge, hasAge bool
	for attribute := range strings.SplitSeq(attributes, ";") {
		name, value, _ := strings.Cut(attribute, "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "max-age":
			if digits := strings.TrimPrefix(value, "-"); digits != "" && strings.Trim(digits, "0123456789") == "" {
				hasAge, byAge = true, strings.Trim(value, "0") == "" || value[0] == '-'
			}
		case "expires":
			if at, ok := parseExpires(value); ok {
				byDate = !at.After(now)
			}
		}
	}
	if hasAge {
		return byAge
	}
	return byDate
}

// parseExpires reads a date as lenient as browsers do (RFC 6265, section 5.1.1): a
// time, a day, a month and a year in whatever order and with whatever between them.
func parseExpires(value string) (time.Time, bool) {
	var clock, day, year []string
	month := time.Month(0)
	for _, token := range strings.FieldsFunc(value, isDateDelimiter) {
		if match := dateClock.FindStringSubmatch(token); match != nil && clock == nil {
			clock = match
		} else if match := dateDay.FindStringSubmatch(token); match != nil && day == nil {
			day = match
		} else if m := monthOf(token); m != 0 && month == 0 {
			month = m
		} else if match := dateYear.FindStringSubmatch(token); match != nil && year == nil {
			year = match
		}
	}
	if clock == nil || day == nil || month == 0 || year == nil {
		return time.Time{}, false
	}
	h, m, s, d, y := atoi(clock[1]), atoi(clock[2]), atoi(clock[3]), atoi(day[1]), atoi(year[1])
	switch {
	case y >= 70 && y <= 99:
		y += 1900
	case y <= 69:
		y += 2000
	}
	if d < 1 || d > 31 || y < 1601 || h > 23 || m > 59 || s > 59 {
		return time.Time{}, false
	}
	at := time.Date(y, month, d, h, m, s, 0, time.UTC)
	return at, at.Day() == d // there is no 31st of June
}

var (
	dateClock = regexp.MustCompile(`^(\d{1,2}):(\d{1,2}):(\d{1,2})(\D|$)`)
	dateDay   = regexp.MustCompile(`^(\d{1,2})(\D|$)`)
	dateYear  = regexp.MustCompile(`^(\d{2,4})(\D|$)`)
)

// isDateDelimiter tells what stands between the parts of a date.
func isDateDelimiter(r rune) bool {
	return r == '\t' || r >= ' ' && r <= '/' || r >= ';' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~'
}

func monthOf(token string) time.Month {
	for m := time.January; m <= time.December; m++ {
		if name := m.String()[:3]; len(token) >= 3 && strings.EqualFold(token[:3], name) {
			return m
		}
	}
	return 0
}

// atoi is the number that a few digits are.
func atoi(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

// plainValue is a wire value as JSON has it: a quoted one loses its quotes and
// escapes, as in Python's http.cookies. A byte that is not UTF-8 becomes the
// surrogate that Python's surrogateescape makes of it, so that it can come back.
func plainValue(wire string) string {
	if len(wire) < 2 || wire[0] != '"' || wire[len(wire)-1] != '"' {
		return escapeBytes(wire)
	}
	inner := wire[1 : len(wire)-1]
	if !strings.Contains(inner, `\`) {
		return escapeBytes(inner)
	}
	var b strings.Builder
	for i := 0; i < len(inner); i++ {
		if inner[i] != '\\' || i+1 == len(inner) {
			b.WriteByte(inner[i])
			continue
		}
		if r, ok := octal(inner[i+1:]); ok {
			b.WriteRune(r)
			i += 3
			continue
		}
		i++
		b.WriteByte(inner[i])
	}
	return escapeBytes(b.String())
}

// octal reads three octal digits, 0 to 0377.
func octal(s string) (rune, bool) {
	if len(s) < 3 || s[0] < '0' || s[0] > '3' || s[1] < '0' || s[1] > '7' || s[2] < '0' || s[2] > '7' {
		return 0, false
	}
	return rune(s[0]-'0')<<6 | rune(s[1]-'0')<<3 | rune(s[2]-'0'), true
}

func escapeBytes(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			b.Write([]byte{0xED, 0xB0 | s[i]>>6, 0x80 | s[i]&0x3F}) // U+DC00 + the byte
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// wireValue is a plain value as a Cookie header has it: quoted when a character
// is outside RFC 6265's cookie-octets, and then with the escapes of Python's
// http.cookies.
func wireValue(plain string) string {
	if !strings.ContainsFunc(plain, needsQuotes) {
		return plain
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(plain); {
		if s := plain[i:]; len(s) >= 3 && s[0] == 0xED && s[1]&0xFE == 0xB2 && s[2]&0xC0 == 0x80 {
			b.WriteByte(s[1]<<6 | s[2]&0x3F) // the byte that escapeBytes kept
			i += 3
			continue
		}
		r, n := utf8.DecodeRuneInString(plain[i:])
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r > 0xFF || isUnescaped(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\%03o`, r)
		}
		i += n
	}
	b.WriteByte('"')
	return b.String()
}

// needsQuotes reports whether a character is outside RFC 6265's cookie-octets.
func needsQuotes(r rune) bool {
	return r <= ' ' || r >= 0x7F || r == '"' || r == ',' || r == ';' || r == '\\'
}

// isUnescaped reports whether Python's http.cookies leaves a character of a
// quoted value as it is.
func isUnescaped(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return true
	}
	return strings.ContainsRune("!#$%&'*+-.^_`|~: ()/<=>?@[]{}", r)
}
