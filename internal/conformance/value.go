package conformance

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A value is JSON as it came and as it is meant.
type value struct {
	kind     kind
	raw      string   // as it came
	text     string   // of a string; a lone surrogate is in its three-byte form
	members  []member // of an object, as they came
	elements []value  // of an array
}

type member struct {
	name  string
	value value
}

type kind byte

const (
	notJSON      kind = iota
	kindObject        // {…}
	kindArray         // […]
	kindText          // "…"
	kindNumber        // also one that no float can hold
	kindLiteral       // true, false, null
	kindConstant      // NaN, Infinity, -Infinity: not JSON, but Python writes and reads them
)

// readValue reads a text; what is not JSON has the kind that says so.
func readValue(data []byte) value {
	r := reader{rest: string(data)}
	v, ok := r.value()
	r.space()
	if !ok || r.rest != "" || !utf8.Valid(data) {
		return value{kind: notJSON, raw: string(data)}
	}
	return v
}

// UnmarshalJSON lets a case hold a value.
func (v *value) UnmarshalJSON(data []byte) error {
	*v = readValue(data)
	return nil
}

// A reader takes values off the front of a text. Its methods report whether
// there was what they look for.
type reader struct{ rest string }

func (r *reader) space() { r.rest = strings.TrimLeft(r.rest, " \t\r\n") }

func (r *reader) take(token string) bool {
	rest, ok := strings.CutPrefix(r.rest, token)
	r.rest = rest
	return ok
}

func (r *reader) value() (value, bool) {
	r.space()
	before := r.rest
	var v value
	ok := false
	switch {
	case r.take("{"):
		v.kind = kindObject
		v.members, ok = r.members()
	case r.take("["):
		v.kind = kindArray
		v.elements, ok = r.elements()
	case r.take(`"`):
		v.kind = kindText
		v.text, ok = r.string()
	case r.take("true"), r.take("false"), r.take("null"):
		v.kind, ok = kindLiteral, true
	case r.take("NaN"), r.take("Infinity"), r.take("-Infinity"):
		v.kind, ok = kindConstant, true
	default:
		v.kind, ok = kindNumber, r.number()
	}
	v.raw = before[:len(before)-len(r.rest)]
	return v, ok
}

func (r *reader) members() ([]member, bool) {
	var members []member
	for r.space(); !r.take("}"); r.space() {
		if len(members) > 0 {
			if !r.take(",") {
				return nil, false
			}
			r.space()
		}
		if !r.take(`"`) {
			return nil, false
		}
		name, ok := r.string()
		r.space()
		if !ok || !r.take(":") {
			return nil, false
		}
		v, ok := r.value()
		if !ok {
			return nil, false
		}
		members = append(members, member{name, v})
	}
	return members, true
}

func (r *reader) elements() ([]value, bool) {
	var elements []value
	for r.space(); !r.take("]"); r.space() {
		if len(elements) > 0 && !r.take(",") {
			return nil, false
		}
		v, ok := r.value()
		if !ok {
			return nil, false
		}
		elements = append(elements, v)
	}
	return elements, true
}

// string reads what follows an opening quote, with the closing one.
func (r *reader) string() (string, bool) {
	var b strings.Builder
	for {
		end := strings.IndexFunc(r.rest, func(c rune) bool { return c == '"' || c == '\\' || c < ' ' })
		if end < 0 {
			return "", false
		}
		b.WriteString(r.rest[:end])
		r.rest = r.rest[end:]
		if r.take(`"`) {
			return b.String(), true
		}
		if !r.take(`\`) || !r.escape(&b) {
			return "", false
		}
	}
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (r *reader) escape(b *strings.Builder) bool {
	if r.take("u") {
		return r.unicode(b)
	}
	if r.rest == "" {
		return false
	}
	c, ok := escapes[r.rest[0]]
	b.WriteByte(c)
	r.rest = r.rest[1:]
	return ok
}

func (r *reader) unicode(b *strings.Builder) bool {
	c, ok := r.hex()
	if !ok {
		return false
	}
	if utf16.IsSurrogate(c) {
		ahead := *r
		if low, ok := ahead.lowSurrogate(); ok && utf16.DecodeRune(c, low) != utf8.RuneError {
			*r = ahead
			b.WriteRune(utf16.DecodeRune(c, low))
			return true
		}
		// WriteRune would make every lone surrogate the same.
		b.Write([]byte{0xE0 | byte(c>>12), 0x80 | byte(c>>6)&0x3F, 0x80 | byte(c)&0x3F})
		return true
	}
	b.WriteRune(c)
	return true
}

func (r *reader) lowSurrogate() (rune, bool) {
	if !r.take(`\u`) {
		return 0, false
	}
	return r.hex()
}

func (r *reader) hex() (rune, bool) {
	if len(r.rest) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(r.rest[:4], 16, 16)
	r.rest = r.rest[4:]
	return rune(n), err == nil
}

func (r *reader) number() bool {
	r.take("-")
	if !r.take("0") && !r.digits() {
		return false
	}
	if r.take(".") && !r.digits() {
		return false
	}
	if r.take("e") || r.take("E") {
		if !r.take("+") {
			r.take("-")
		}
		return r.digits()
	}
	return true
}

func (r *reader) digits() bool {
	rest := strings.TrimLeft(r.rest, "0123456789")
	found := len(rest) < len(r.rest)
	r.rest = rest
	return found
}

// get is the value of a name, the last one when there are several. The value of
// a name that is not there, or of something else than an object, is not JSON.
func (v value) get(name string) value {
	for _, m := range slices.Backward(v.members) {
		if m.name == name {
			return m.value
		}
	}
	return value{}
}

// has reports whether there is such a value, be it null.
func (v value) has(name string) bool { return v.get(name).there() }

func (v value) there() bool { return v.kind != notJSON }

func (v value) null() bool { return v.raw == "null" }

// repeated are the names that an object has more than once.
func (v value) repeated() []string {
	var twice []string
	seen := map[string]bool{}
	for _, m := range v.members {
		if seen[m.name] {
			twice = append(twice, m.name)
		}
		seen[m.name] = true
	}
	return twice
}

// compact is the text as it came without the white space between its tokens.
func (v value) compact() string {
	if v.kind == notJSON {
		return v.raw
	}
	var b strings.Builder
	b.Grow(len(v.raw))
	quoted := false
	for i := 0; i < len(v.raw); i++ {
		c := v.raw[i]
		switch {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			b.WriteByte(c)
			i++
			c = v.raw[i]
		case !quoted && strings.IndexByte(" \t\r\n", c) >= 0:
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// same reports whether two values mean the same. want may stand for a large one
// by the hash of its canonical form.
func same(want, got value) bool {
	if hash := want.get("$sha"); hash.there() {
		canonical := got.canonical()
		sum := sha256.Sum256(canonical)
		return hash.text == hex.EncodeToString(sum[:]) && want.get("$canon_len").raw == strconv.Itoa(len(canonical))
	}
	return bytes.Equal(want.canonical(), got.canonical())
}

// canonical is one text for all that mean the same, as Python's
// json.dumps(sort_keys=True, separators=(",", ":")) writes it: ASCII, the last of
// repeated names, whole numbers below 1e15 as integers.
func (v value) canonical() []byte { return v.appendCanonical(nil) }

func (v value) appendCanonical(dst []byte) []byte {
	switch v.kind {
	case kindObject:
		return v.appendObject(dst)
	case kindArray:
		dst = append(dst, '[')
		for i, element := range v.elements {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = element.appendCanonical(dst)
		}
		return append(dst, ']')
	case kindText:
		return appendASCII(dst, v.text)
	case kindNumber:
		return appendNumber(dst, v.raw)
	case kindLiteral:
		return append(dst, v.raw...)
	case kindConstant:
		return appendMark(dst, "$const", v.raw)
	}
	if !utf8.ValidString(v.raw) {
		return appendMark(dst, "$b64", base64.StdEncoding.EncodeToString([]byte(v.raw)))
	}
	return appendMark(dst, "$text", v.raw)
}

func (v value) appendObject(dst []byte) []byte {
	last := make(map[string]value, len(v.members))
	names := make([]string, 0, len(v.members))
	for _, m := range v.members {
		if _, seen := last[m.name]; !seen {
			names = append(names, m.name)
		}
		last[m.name] = m.value
	}
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendASCII(dst, name), ':')
		dst = last[name].appendCanonical(dst)
	}
	return append(dst, '}')
}

func appendMark(dst []byte, mark, content string) []byte {
	dst = append(dst, `{"`+mark+`":`...)
	return append(appendASCII(dst, content), '}')
}

// appendNumber appends a number as Python would: an integer of any size keeps
// its digits, anything else is a float.
func appendNumber(dst []byte, raw string) []byte {
	if !strings.ContainsAny(raw, ".eE") {
		n, _ := new(big.Int).SetString(raw, 10)
		return n.Append(dst, 10)
	}
	f, _ := strconv.ParseFloat(raw, 64) // out of range: an infinity
	switch {
	case math.IsInf(f, 0):
		return appendMark(dst, "$num", raw)
	case f == math.Trunc(f) && math.Abs(f) < 1e15:
		return strconv.AppendInt(dst, int64(f), 10)
	case f == math.Trunc(f) && math.Abs(f) < 1e16:
		return append(strconv.AppendFloat(dst, f, 'f', -1, 64), ".0"...)
	case math.Abs(f) >= 1e16 || math.Abs(f) < 1e-4:
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

var shortEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

// appendASCII appends a string with everything escaped that is not printable
// ASCII.
func appendASCII(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for s != "" {
		c, n := decode(s)
		s = s[n:]
		switch escape, short := shortEscapes[c]; {
		case short:
			dst = append(dst, escape...)
		case ' ' <= c && c <= '~':
			dst = append(dst, byte(c))
		case c > 0xFFFF:
			high, low := utf16.EncodeRune(c)
			dst = appendEscape(appendEscape(dst, high), low)
		default:
			dst = appendEscape(dst, c)
		}
	}
	return append(dst, '"')
}

// decode is utf8.DecodeRuneInString for a text that may hold lone surrogates.
func decode(s string) (rune, int) {
	if len(s) >= 3 && s[0] == 0xED && s[1] >= 0xA0 {
		return 0xD000 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F), 3
	}
	return utf8.DecodeRuneInString(s)
}

func appendEscape(dst []byte, c rune) []byte {
	const digits = "0123456789abcdef"
	return append(dst, '\\', 'u', digits[c>>12&15], digits[c>>8&15], digits[c>>4&15], digits[c&15])
}
