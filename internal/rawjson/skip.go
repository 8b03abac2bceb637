package rawjson

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
)

// What stands in this file reads values that this package has found valid. It looks for
// where they end and checks nothing, which is several times as fast.

// Members returns the members of a valid object, as [ParseObject] does. The error is a
// *[SyntaxError] when there are more of them than [MaxNames].
func Members(object []byte) (Object, error) {
	members := make(Object, 0, fewMembers)
	index := nameIndex{}
	for key, value := range each(object) {
		member := Member{Name: unquote(key), Key: key, Value: value}
		if at, seen := index.find(members, member.Name); seen {
			members[at].Value = value
		} else if len(members) == MaxNames {
			return nil, &SyntaxError{Problem: fmt.Sprintf("an object of more than %d names", MaxNames)}
		} else {
			members = append(members, member)
		}
	}
	return members, nil
}

// Find returns the value of a name in a valid object, the last one when there are some,
// and whether there is any.
func Find(object []byte, name string) (value []byte, there bool) {
	for key, v := range each(object) {
		if isKey(key, name) {
			value, there = v, true
		}
	}
	return value, there
}

// isKey reports whether a key, quotes included, stands for a name.
func isKey(key []byte, name string) bool {
	if bytes.IndexByte(key, '\\') >= 0 {
		return unquote(key) == name
	}
	return string(key[1:len(key)-1]) == name
}

// each yields the keys and values of a valid object as they came.
func each(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		i := skipSpace(object, bytes.IndexByte(object, '{')+1)
		for i < len(object) && object[i] == '"' {
			keyEnd := skipText(object, i)
			begin := skipSpace(object, skipSpace(object, keyEnd)+1) // behind the colon
			end := skip(object, begin)
			if !yield(object[i:keyEnd], object[begin:end]) {
				return
			}
			i = skipSpace(object, skipSpace(object, end)+1) // behind the comma
		}
	}
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// skip is where a valid value ends.
func skip(data []byte, i int) int {
	switch data[i] {
	case '"':
		return skipText(data, i)
	case '{', '[':
		return skipContainer(data, i)
	}
	for i < len(data) {
		switch data[i] {
		case ',', '}', ']', ' ', '\n', '\t', '\r':
			return i
		}
		i++
	}
	return i
}

func skipText(data []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(data[i:], '"')
		backslashes := 0
		for data[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 { // each of them stands for itself, or for the next
			return i + 1
		}
	}
}

// skipContainer is where an array or an object ends. Eight bytes are looked at together.
func skipContainer(data []byte, i int) int {
	for depth := 0; ; {
		for i+8 <= len(data) {
			w := binary.LittleEndian.Uint64(data[i:])
			brackets := w | everyByte*0x20 // '[' becomes '{' and ']' becomes '}'
			hit := zeroBytes(w^everyByte*'"') | zeroBytes(brackets^everyByte*'{') | zeroBytes(brackets^everyByte*'}')
			if hit != 0 {
				i += bits.TrailingZeros64(hit) / 8
				break
			}
			i += 8
		}
		switch data[i] {
		case '"':
			i = skipText(data, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				return i + 1
			}
		}
		i++
	}
}

// zeroBytes has the high bit set of each byte that is zero, and maybe of some above the
// lowest of them.
func zeroBytes(w uint64) uint64 { return (w - everyByte) &^ w & highBits }
