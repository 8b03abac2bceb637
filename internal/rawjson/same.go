package rawjson

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// maxDecoded is how many bytes of values are decoded, which takes a hundred times
// their memory.
const maxDecoded = 4 << 20

// Same reports whether two valid values are equal to a reader that does not look
// at white space, the order of members or the spelling of numbers. Those of more than
// four mebibytes together have to be the same text.
func Same(a, b []byte) bool {
	return bytes.Equal(a, b) || len(a)+len(b) <= maxDecoded && sameValue(decode(a), decode(b))
}

func decode(value []byte) any {
	d := json.NewDecoder(bytes.NewReader(spellLoneSurrogates(value)))
	d.UseNumber()
	var v any
	_ = d.Decode(&v) // it has been found valid
	return v
}

// escapes are a pair of surrogates, a lone one, and the beginning of any other
// escape.
var escapes = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]..|\\.`)

// spellLoneSurrogates writes each lone surrogate of valid JSON as U+FFFF, which
// stands for no character, and its digits: encoding/json would make them all one
// and the same character.
func spellLoneSurrogates(value []byte) []byte {
	return escapes.ReplaceAllFunc(value, func(escape []byte) []byte {
		if len(escape) != len(`\ud800`) {
			return escape
		}
		return append([]byte(`\uffff`), bytes.ToLower(escape[2:])...)
	})
}

func sameValue(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		return ok && sameNumber(string(a), string(b))
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !sameValue(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name := range a {
			if other, there := b[name]; !there || !sameValue(a[name], other) {
				return false
			}
		}
		return true
	}
	return a == b
}

// sameNumber compares two numbers as Python does: whole ones exactly, also with a
// float, and floats as floats.
func sameNumber(a, b string) bool {
	wholeA, wholeB := !strings.ContainsAny(a, ".eE"), !strings.ContainsAny(b, ".eE")
	switch {
	case wholeA && wholeB:
		return a == b || strings.Trim(a, "-") == "0" && strings.Trim(b, "-") == "0"
	case wholeB:
		a, b, wholeA = b, a, true
	}
	q, _ := strconv.ParseFloat(b, 64) // beyond all floats it is infinite, as in Python
	if wholeA {
		return q == math.Trunc(q) && !math.IsInf(q, 0) && sameNumber(a, strconv.FormatFloat(q, 'f', 0, 64))
	}
	p, _ := strconv.ParseFloat(a, 64)
	return p == q
}
