package rawjson

import (
	"bytes"
	"fmt"
	"math"
)

// A Member is one name and value of an object, both as they came.
type Member struct {
	Name  string // unescaped
	Key   []byte // as it came, quotes included
	Value []byte // as it came, without the white space around it
}

// An Object is the members of a JSON object in the order of their first
// appearance. A name that came more than once is there once, with its last
// value. Names differ in case and are compared unescaped.
type Object []Member

// A TypeError says that a JSON value is of another kind than was asked for.
type TypeError struct{ Want, Got string }

func (e *TypeError) Error() string { return "want " + e.Want + ", got " + e.Got }

// MaxNames is how many names an object may have that is taken apart, each of which
// takes some thirty times the memory of its text.
const MaxNames = 1_000_000

// ParseObject validates data as JSON and returns the members of the object that
// it is. Keys and values are slices of data, which must not change as long as
// they are used. The error is a *[SyntaxError] when data is not JSON, else a
// *[TypeError].
func ParseObject(data []byte) (Object, error) {
	s := scanner{data: data}
	s.space()
	if s.peek() != '{' {
		if err := Check(data); err != nil {
			return nil, err
		}
		return nil, &TypeError{Want: "an object", Got: Describe(data)}
	}
	object, err := s.object()
	if err != nil {
		return nil, err
	}
	return object, s.end()
}

// fewMembers are as many as most objects of the protocol, and most rows, have at most.
const fewMembers = 8

// object reads an object. Its members are gathered on the stack if they are few, and
// what stays takes no more than they do.
func (s *scanner) object() (Object, error) {
	var few [fewMembers]Member
	members, err := s.members(few[:0])
	if err != nil {
		return nil, err
	}
	return append(make(Object, 0, len(members)), members...), nil
}

// members appends the members of an object.
func (s *scanner) members(object Object) (Object, error) {
	s.pos++
	s.open = append(s.open, '{')
	index := nameIndex{}
	s.space()
	if s.peek() == '}' {
		s.pos++
		return object, nil
	}
	for {
		s.space()
		key, err := s.name()
		if err != nil {
			return nil, err
		}
		s.space()
		start := s.pos
		if err := s.value(); err != nil {
			return nil, err
		}
		member := Member{Name: unquote(key), Key: key, Value: s.data[start:s.pos]}
		if at, seen := index.find(object, member.Name); seen {
			object[at].Value = member.Value
		} else if len(object) == MaxNames {
			return nil, s.fail(fmt.Sprintf("an object of more than %d names", MaxNames))
		} else {
			object = append(object, member)
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return object, nil
		default:
			return nil, s.unexpected("a comma or a closing bracket")
		}
	}
}

// nameIndex finds a name among the members read so far. Few names are compared
// one by one; an object of a hundred thousand must not take their square.
type nameIndex map[string]int

const fewNames = 16

func (x *nameIndex) find(object Object, name string) (int, bool) {
	if len(object) < fewNames {
		for i := range object {
			if object[i].Name == name {
				return i, true
			}
		}
		return 0, false
	}
	if len(*x) == 0 {
		*x = make(nameIndex, 2*fewNames)
		for i := range object {
			(*x)[object[i].Name] = i
		}
	}
	at, seen := (*x)[name]
	if !seen {
		(*x)[name] = len(object)
	}
	return at, seen
}

// Get returns the value of a name and whether the object has it.
func (o Object) Get(name string) ([]byte, bool) {
	for i := range o {
		if o[i].Name == name {
			return o[i].Value, true
		}
	}
	return nil, false
}

// Present returns the value of a name, nil when it is absent or null.
func (o Object) Present(name string) []byte {
	value, there := o.Get(name)
	if !there || IsNull(value) {
		return nil
	}
	return value
}

// Text returns the Go string that the value of a name stands for, "" when it is no
// string or not there.
func (o Object) Text(name string) string {
	value, _ := o.Get(name)
	text, _ := Text(value)
	return text
}

// Bytes is the object as text.
func (o Object) Bytes() []byte {
	size := len("{}")
	for _, member := range o {
		size += len(member.Key) + len(":,") + len(member.Value)
	}
	text := append(make([]byte, 0, size), '{')
	for i, member := range o {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(append(text, member.Key...), ':'), member.Value...)
	}
	return append(text, '}')
}

// OrNull returns value, or null when it is nil.
func OrNull(value []byte) []byte {
	if value == nil {
		return []byte("null")
	}
	return value
}

// The functions below read a value that this package has found valid.

// Describe names what kind of value it is: "an object", "a string", "null", …
func Describe(value []byte) string {
	switch trimmed := bytes.TrimLeft(value, " \t\r\n"); {
	case len(trimmed) == 0:
		return "nothing"
	case trimmed[0] == '{':
		return "an object"
	case trimmed[0] == '[':
		return "an array"
	case trimmed[0] == '"':
		return "a string"
	case trimmed[0] == 't' || trimmed[0] == 'f':
		return "a boolean"
	case trimmed[0] == 'n':
		return "null"
	}
	return "a number"
}

// IsObject reports whether value is an object.
func IsObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }

// IsArray reports whether value is an array.
func IsArray(value []byte) bool { return len(value) > 0 && value[0] == '[' }

// IsString reports whether value is a string.
func IsString(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// IsNull reports whether value is null.
func IsNull(value []byte) bool { return len(value) > 0 && value[0] == 'n' }

// IsNumber reports whether value is a number.
func IsNumber(value []byte) bool {
	return len(value) > 0 && (value[0] == '-' || '0' <= value[0] && value[0] <= '9')
}

// IsEmpty reports whether value is an object without members, an array without
// elements or a string without characters.
func IsEmpty(value []byte) bool {
	if !IsObject(value) && !IsArray(value) && !IsString(value) {
		return false
	}
	inner := value[1 : len(value)-1]
	return len(inner) == 0 || !IsString(value) && len(bytes.TrimLeft(inner, " \t\r\n")) == 0
}

// Elements returns the values of a valid array, in order, as slices of it; another value
// has none.
func Elements(array []byte) [][]byte { return FirstElements(array, math.MaxInt) }

// FirstElements returns the first n values of a valid array.
func FirstElements(array []byte, n int) [][]byte {
	if !IsArray(array) { // skip knows no end of what it takes for an element and is none
		return nil
	}
	var elements [][]byte
	i := skipSpace(array, 1)
	for len(elements) < n && i < len(array) && array[i] != ']' {
		end := skip(array, i)
		elements = append(elements, array[i:end])
		i = skipSpace(array, end)
		if i < len(array) && array[i] == ',' {
			i = skipSpace(array, i+1)
		}
	}
	return elements
}
