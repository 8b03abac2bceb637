package rawjson

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may nest, the limit of encoding/json.
const MaxDepth = 10_000

// A SyntaxError says where a text stops being JSON.
type SyntaxError struct {
	Offset  int    // bytes before the place
	Problem string // what was found there
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("not JSON: %s at byte %d", e.Problem, e.Offset)
}

// Check reports why data is not one JSON value, with white space around it
// allowed, or nil when it is. The error is a *[SyntaxError].
func Check(data []byte) error {
	s := scanner{data: data}
	if err := s.value(); err != nil {
		return err
	}
	return s.end()
}

// Valid reports whether data is one JSON value.
func Valid(data []byte) bool { return Check(data) == nil }

type scanner struct {
	data []byte
	pos  int
	open []byte // the brackets that are open around pos
}

func (s *scanner) fail(problem string) error {
	return &SyntaxError{Offset: s.pos, Problem: problem}
}

// unexpected is the failure at a byte that cannot stand there.
func (s *scanner) unexpected(want string) error {
	if s.pos >= len(s.data) {
		return s.fail("the text ends where " + want + " should be")
	}
	found := s.data[s.pos : s.pos+1]
	for _, word := range []string{"NaN", "Infinity"} { // what Python writes and JSON does not have
		if bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
			found = []byte(word)
		}
	}
	return s.fail(fmt.Sprintf("%q where %s should be", found, want))
}

func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0 // no token begins with it
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) end() error {
	s.space()
	if s.pos < len(s.data) {
		return s.unexpected("the end of the text")
	}
	return nil
}

// value passes over one value of any depth. It keeps its own stack: a few
// megabytes of "[" would end the process if it called itself.
func (s *scanner) value() error {
	outside := len(s.open)
	for {
		entered, err := s.enter()
		if err != nil {
			return err
		}
		if entered {
			continue
		}
		again, err := s.leave(outside)
		if err != nil || !again {
			return err
		}
	}
}

// enter passes over a scalar or an empty container, or opens a container up to
// its first value and reports true.
func (s *scanner) enter() (bool, error) {
	s.space()
	switch c := s.peek(); {
	case c == '"':
		_, err := s.text()
		return false, err
	case c == '{' || c == '[':
		if len(s.open) == MaxDepth {
			return false, s.fail("nesting deeper than 10000")
		}
		s.pos++
		s.space()
		if s.peek() == c+2 { // '}' is '{'+2 and ']' is '['+2
			s.pos++
			return false, nil
		}
		s.open = append(s.open, c)
		if c == '{' {
			_, err := s.name()
			return true, err
		}
		return true, nil
	case c == '-' || '0' <= c && c <= '9':
		return false, s.numbers()
	case c == 't':
		return false, s.literal("true")
	case c == 'f':
		return false, s.literal("false")
	case c == 'n':
		return false, s.literal("null")
	}
	return false, s.unexpected("a value")
}

// leave closes the containers that end after a value, and reports whether
// another value follows in one that is still open.
func (s *scanner) leave(outside int) (bool, error) {
	for len(s.open) > outside {
		s.space()
		within := s.open[len(s.open)-1]
		switch s.peek() {
		case ',':
			s.pos++
			if within == '{' {
				s.space()
				_, err := s.name()
				return true, err
			}
			return true, nil
		case within + 2:
			s.pos++
			s.open = s.open[:len(s.open)-1]
		default:
			return false, s.unexpected("a comma or a closing bracket")
		}
	}
	return false, nil
}

// name passes over a member's name and its colon; it returns the name's text,
// quotes included.
func (s *scanner) name() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.unexpected("a name in quotes")
	}
	name, err := s.text()
	if err != nil {
		return nil, err
	}
	s.space()
	if s.peek() != ':' {
		return nil, s.unexpected("a colon")
	}
	s.pos++
	return name, nil
}

const (
	everyByte = 0x0101_0101_0101_0101
	highBits  = 0x8080_8080_8080_8080
)

// text passes over a string and returns it, quotes included. Eight bytes are
// looked at together: strings are most of what a large body is made of.
func (s *scanner) text() ([]byte, error) {
	start := s.pos
	i := start + 1
	for {
		for i+8 <= len(s.data) {
			w := binary.LittleEndian.Uint64(s.data[i:])
			// A high bit is set in each byte that is not ASCII, below a
			// space, a quote or a backslash. A borrow can set more of them,
			// though only above a true one, and the lowest is what counts.
			hit := (w | (w - everyByte*0x20) | ((w ^ everyByte*'"') - everyByte) | ((w ^ everyByte*'\\') - everyByte)) & highBits
			if hit != 0 {
				i += bits.TrailingZeros64(hit) / 8
				break
			}
			i += 8
		}
		if i >= len(s.data) {
			s.pos = len(s.data)
			return nil, s.fail("a string without its closing quote")
		}
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return s.data[start:s.pos], nil
		case c == '\\':
			n := escapeLen(s.data[i:])
			if n == 0 {
				s.pos = i
				return nil, s.fail("an escape that JSON does not have")
			}
			i += n
		case c < ' ':
			s.pos = i
			return nil, s.fail("a control character in a string")
		case c < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(s.data[i:])
			if r == utf8.RuneError && n == 1 {
				s.pos = i
				return nil, s.fail("text that is not UTF-8")
			}
			i += n
		}
	}
}

// escapeLen is the length of the escape that b begins with, 0 when it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b[2:]); ok {
			return 6
		}
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// numbers passes over a number and, within an array, over those that follow it: token
// ids and log-probabilities come by the hundred thousand.
func (s *scanner) numbers() error {
	inArray := len(s.open) > 0 && s.open[len(s.open)-1] == '['
	for {
		if err := s.number(); err != nil || !inArray {
			return err
		}
		next := s.nextNumber()
		if next < 0 {
			return nil
		}
		s.pos = next
	}
}

// nextNumber is where another number begins, behind a comma and spaces; -1 when what
// follows is anything else, or written otherwise.
func (s *scanner) nextNumber() int {
	data, i := s.data, s.pos
	if i == len(data) || data[i] != ',' {
		return -1
	}
	for i++; i < len(data) && data[i] == ' '; i++ {
	}
	if i == len(data) || data[i] != '-' && (data[i] < '0' || data[i] > '9') {
		return -1
	}
	return i
}

func (s *scanner) number() error {
	data, i := s.data, s.pos
	if i < len(data) && data[i] == '-' {
		i++
	}
	whole := i
	if i = digitsEnd(data, i); i == whole {
		return s.notDigit(i)
	}
	if data[whole] == '0' {
		i = whole + 1 // what follows it is not of this number
	}
	if i < len(data) && data[i] == '.' {
		fraction := i + 1
		if i = digitsEnd(data, fraction); i == fraction {
			return s.notDigit(i)
		}
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		exponent := i
		if i = digitsEnd(data, i); i == exponent {
			return s.notDigit(i)
		}
	}
	s.pos = i
	return nil
}

func (s *scanner) notDigit(at int) error {
	s.pos = at
	return s.unexpected("a digit")
}

// digitsEnd is where digits end that begin at a place. Eight bytes are looked at
// together: how many digits there are is up to chance, which costs more than they do.
func digitsEnd(data []byte, i int) int {
	for i+8 <= len(data) {
		// What is above 9 gets its high bit, and may carry into what is above it.
		w := binary.LittleEndian.Uint64(data[i:]) ^ everyByte*'0'
		if other := (w | (w + everyByte*(0x80-10))) & highBits; other != 0 {
			return i + bits.TrailingZeros64(other)/8
		}
		i += 8
	}
	for i < len(data) && '0' <= data[i] && data[i] <= '9' {
		i++
	}
	return i
}

func (s *scanner) literal(word string) error {
	rest := s.data[s.pos:]
	if len(rest) < len(word) || string(rest[:len(word)]) != word {
		return s.unexpected("a value")
	}
	s.pos += len(word)
	return nil
}
