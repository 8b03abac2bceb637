package rawjson

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns the Go string that a valid JSON string stands for. A lone
// surrogate becomes its three-byte form, which is not UTF-8 (utf8.ValidString
// tells) and which [AppendText] writes as the escape that it was.
func Text(value []byte) (string, bool) {
	if !IsString(value) {
		return "", false
	}
	return unquote(value), true
}

func unquote(quoted []byte) string {
	inner := quoted[1 : len(quoted)-1]
	escape := bytes.IndexByte(inner, '\\')
	if escape < 0 {
		return string(inner)
	}
	out := make([]byte, 0, len(inner))
	for escape >= 0 {
		out = append(out, inner[:escape]...)
		inner = inner[escape:]
		out, inner = appendUnescaped(out, inner)
		escape = bytes.IndexByte(inner, '\\')
	}
	return string(append(out, inner...))
}

// appendUnescaped appends what the escape at the start of inner stands for and
// returns the rest.
func appendUnescaped(out, inner []byte) (appended, rest []byte) {
	switch c := inner[1]; c {
	case 'b':
		return append(out, '\b'), inner[2:]
	case 'f':
		return append(out, '\f'), inner[2:]
	case 'n':
		return append(out, '\n'), inner[2:]
	case 'r':
		return append(out, '\r'), inner[2:]
	case 't':
		return append(out, '\t'), inner[2:]
	case 'u':
		return appendUnicode(out, inner)
	default: // quote, backslash, slash
		return append(out, c), inner[2:]
	}
}

func appendUnicode(out, inner []byte) (appended, rest []byte) {
	r, _ := hex4(inner[2:])
	inner = inner[6:]
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(out, r), inner
	}
	if len(inner) >= 6 && inner[0] == '\\' && inner[1] == 'u' {
		low, _ := hex4(inner[2:])
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return utf8.AppendRune(out, pair), inner[6:]
		}
	}
	return append(out, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F), inner
}

const hexDigits = "0123456789abcdef"

// AppendText appends s as a JSON string. Only what JSON requires is escaped:
// "<", ">", "&" and the Unicode line separators stay as they are. The
// three-byte form of a lone surrogate becomes its escape, any other byte that
// is not UTF-8 becomes U+FFFD, so that the result is always valid.
func AppendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	plain := 0 // start of what is not appended yet
	for i := 0; i < len(s); {
		c := s[i]
		if isPlain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
		}
		dst = append(dst, s[plain:i]...)
		n := 1
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		case isSurrogateForm(s[i:]):
			n = 3
			dst = append(dst, '\\', 'u', 'd', hexDigits[s[i+1]>>2&15], hexDigits[s[i+1]<<2&12|s[i+2]>>4&3], hexDigits[s[i+2]&15])
		default:
			dst = append(dst, "\uFFFD"...)
		}
		i += n
		plain = i
	}
	dst = append(dst, s[plain:]...)
	return append(dst, '"')
}

// isPlain tells which bytes stand for themselves in a JSON string, and are ASCII.
var isPlain = func() (plain [256]bool) {
	for c := byte(' '); c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

// isSurrogateForm reports whether s begins with a code point from U+D800 to
// U+DFFF in three bytes.
func isSurrogateForm(s string) bool {
	return len(s) >= 3 && s[0] == 0xED && s[1]&0xE0 == 0xA0 && s[2]&0xC0 == 0x80
}
