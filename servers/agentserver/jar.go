package agentserver

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// A jar holds a session's copy of the resources cookies (section 1). They come
// from JSON, where values are plain, and from Set-Cookie headers, whose values go
// back exactly as they came; net/http's cookies would drop the quotes of those
// and skip others in silence.
type jar struct {
	cookies []cookie // in the order of their first appearance
}

type cookie struct {
	name string
	wire string // the value as a Cookie header has it
}

func newJar(plain []protocol.Pair) *jar {
	j := &jar{}
	for _, pair := range plain {
		j.set(pair.Name, quote(pair.Value))
	}
	return j
}

// header is the value of the Cookie header, "" when there is none to send.
func (j *jar) header() string {
	texts := make([]string, len(j.cookies))
	for i, c := range j.cookies {
		texts[i] = c.name + "=" + c.wire
	}
	return strings.Join(texts, "; ")
}

// appendJSON appends the cookies as JSON has them, with plain values.
func (j *jar) appendJSON(dst []byte) []byte {
	var w rawjson.ObjectWriter
	for _, c := range j.cookies {
		w.Text(c.name, unquote(c.wire))
	}
	return append(dst, w.End().Bytes()...)
}

// merge takes over the Set-Cookie headers of a reply: by name, the last one
// wins, and one that has expired already removes its name.
func (j *jar) merge(header http.Header, now time.Time) {
	for _, line := range header["Set-Cookie"] {
		name, rest, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			continue
		}
		value, attributes := splitValue(rest)
		if expired(attributes, now) {
			j.remove(name)
			continue
		}
		j.set(name, value)
	}
}

func (j *jar) set(name, wire string) {
	for i := range j.cookies {
		if j.cookies[i].name == name {
			j.cookies[i].wire = wire
			return
		}
	}
	j.cookies = append(j.cookies, cookie{name, wire})
}

func (j *jar) remove(name string) {
	for i := range j.cookies {
		if j.cookies[i].name == name {
			j.cookies = append(j.cookies[:i], j.cookies[i+1:]...)
			return
		}
	}
}

// splitValue splits what follows the "=" of a Set-Cookie header into the value
// and the attributes. A quoted value may hold a semicolon.
func splitValue(rest string) (value, attributes string) {
	rest = strings.TrimSpace(rest)
	end := strings.IndexByte(rest, ';')
	if quoted := quotedLen(rest); quoted > 0 {
		end = quoted
	}
	if end < 0 {
		return rest, ""
	}
	return strings.TrimSpace(rest[:end]), rest[end:]
}

// quotedLen is the length of the quoted text that s begins with, 0 for none.
func quotedLen(s string) int {
	if !strings.HasPrefix(s, `"`) {
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

// expired reports whether attributes put the end of a cookie in the past.
// Max-Age goes before Expires (RFC 6265, section 5.3).
func expired(attributes string, now time.Time) bool {
	byDate := false
	for attribute := range strings.SplitSeq(attributes, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(attribute), "=")
		switch strings.ToLower(name) {
		case "max-age":
			if seconds, err := strconv.Atoi(value); err == nil {
				return seconds <= 0
			}
		case "expires":
			at, err := http.ParseTime(value)
			byDate = err == nil && !at.After(now)
		}
	}
	return byDate
}

// quote is a plain value as a Cookie header has it: in quotes when a character
// is outside RFC 6265's cookie-octets, and then escaped as Python's http.cookies
// does it.
func quote(plain string) string {
	if !strings.ContainsFunc(plain, needsQuotes) {
		return plain
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range plain {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r > 0xFF || r != ',' && r != ';' && ' ' <= r && r < 0x7F:
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\%03o`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func needsQuotes(r rune) bool {
	return r <= ' ' || r >= 0x7F || strings.ContainsRune(`",;\`, r)
}

// unquote is a wire value as JSON has it: a quoted one without its quotes and
// escapes.
func unquote(wire string) string {
	if len(wire) < 2 || quotedLen(wire) != len(wire) {
		return wire
	}
	inner := wire[1 : len(wire)-1]
	var b strings.Builder
	for i := 0; i < len(inner); i++ {
		if inner[i] != '\\' {
			b.WriteByte(inner[i])
			continue
		}
		i++
		if code, err := strconv.ParseUint(inner[i:min(i+3, len(inner))], 8, 8); err == nil && i+3 <= len(inner) {
			b.WriteRune(rune(code))
			i += 2
			continue
		}
		b.WriteByte(inner[i])
	}
	return b.String()
}
