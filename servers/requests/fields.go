package requests

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"example.com/turn/internal/rawjson"
)

// Fields reads the members of a JSON object and collects what is wrong with
// them. A read that fails returns the zero value and notes a fault, so that a
// body is read in one go and [Fields.Err] asked once, at the end.
type Fields struct {
	source json.RawMessage
	object rawjson.Object
	loc    []any
	faults *faults
	absent bool // there is no object to read: said once, not once a field
}

// Read takes an object apart. loc is where it stands in the request: "body", or
// "body" and the names on the way to it.
func Read(object json.RawMessage, loc ...any) *Fields {
	f := &Fields{loc: loc, faults: new(faults)}
	f.parse(object)
	return f
}

func (f *Fields) parse(value []byte) {
	object, err := rawjson.ParseObject(value)
	if err != nil {
		f.absent = true
		f.faults.add(Fault{Type: "dict_type", Loc: f.loc, Msg: "Input should be a valid dictionary", Input: echo(value)})
		return
	}
	f.source, f.object = value, object
}

// JSON is the object as it came; nil when there is none.
func (f *Fields) JSON() json.RawMessage { return f.source }

// Err returns the faults found so far, those of nested objects included, as an
// [Invalid]; nil when there are none. Of more than a hundred, the others are only
// counted, in one more fault at the end.
func (f *Fields) Err() error {
	if len(f.faults.listed) == 0 {
		return nil
	}
	if f.faults.more == 0 {
		return f.faults.listed
	}
	left := Fault{Type: "value_error", Loc: f.loc, Msg: fmt.Sprintf("left out: %d more", f.faults.more)}
	return append(slices.Clip(f.faults.listed), left)
}

// Fault notes that something is wrong with a field, in words of the caller's:
// typ is pydantic's name for it, or "value_error" where it has none.
func (f *Fields) Fault(name, typ, msg string) {
	f.faults.add(Fault{Type: typ, Loc: f.at(name), Msg: msg})
}

func (f *Fields) wrongType(name string, value []byte, typ, msg string) {
	f.faults.add(Fault{Type: typ, Loc: f.at(name), Msg: msg, Input: echo(value)})
}

func (f *Fields) at(name string) []any {
	return append(slices.Clone(f.loc), shortened(name))
}

// maxEcho is the length in bytes up to which a value at fault is repeated in the
// answer: a person needs to see a typing error, not megabytes of task data.
const maxEcho = 100

func echo(value []byte) []byte {
	if len(value) > maxEcho || !rawjson.Valid(value) || rawjson.IsObject(value) || rawjson.IsArray(value) {
		return nil
	}
	return value
}

// Has reports whether the field is there and not null.
func (f *Fields) Has(name string) bool {
	value, there := f.object.Get(name)
	return there && !rawjson.IsNull(value)
}

// Value is a required field of any kind, as it came; nil when it is missing.
func (f *Fields) Value(name string) json.RawMessage {
	value, there := f.object.Get(name)
	if !there && !f.absent {
		f.Fault(name, "missing", "Field required")
	}
	return value
}

// Text is a required string.
func (f *Fields) Text(name string) string {
	value := f.Value(name)
	if value == nil {
		return ""
	}
	text, ok := rawjson.Text(value)
	if !ok {
		f.wrongType(name, value, "string_type", "Input should be a valid string")
	}
	return text
}

// NonEmpty is a required string of at least one character.
func (f *Fields) NonEmpty(name string) string {
	before := f.faults.len()
	text := f.Text(name)
	if text == "" && f.faults.len() == before && !f.absent {
		f.Fault(name, "string_too_short", "String should have at least 1 character")
	}
	return text
}

// Secret is a required string of at least one character that nobody else may see:
// its faults do not repeat it.
func (f *Fields) Secret(name string) string {
	value := f.Value(name)
	if value == nil {
		return ""
	}
	text, ok := rawjson.Text(value)
	switch {
	case !ok:
		f.Fault(name, "string_type", "Input should be a valid string")
	case text == "":
		f.Fault(name, "string_too_short", "String should have at least 1 character")
	}
	return text
}

// Bool is a required boolean.
func (f *Fields) Bool(name string) bool {
	value := f.Value(name)
	if value != nil && string(value) != "true" && string(value) != "false" {
		f.wrongType(name, value, "bool_type", "Input should be a valid boolean")
	}
	return string(value) == "true"
}

// Whole is a whole number from 0 on; missing reads as 0. 2.0 is one, "2" and
// true are not.
func (f *Fields) Whole(name string) int64 {
	value, there := f.object.Get(name)
	if !there {
		return 0
	}
	number, ok := whole(value)
	switch {
	case !ok:
		f.wrongType(name, value, "int_type", "Input should be a valid integer")
	case number < 0:
		f.wrongType(name, value, "greater_than_equal", "Input should be greater than or equal to 0")
	}
	return number
}

func whole(value []byte) (int64, bool) {
	if !rawjson.IsNumber(value) {
		return 0, false
	}
	if number, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		return number, true
	}
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil || number != math.Trunc(number) || math.Abs(number) >= 1<<63 {
		return 0, false
	}
	return int64(number), true
}

// Number is a required number that a float64 can hold.
func (f *Fields) Number(name string) float64 {
	value := f.Value(name)
	if value == nil {
		return 0
	}
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil || !rawjson.IsNumber(value) {
		f.wrongType(name, value, "float_type", "Input should be a valid number")
		return 0
	}
	return number
}

// Raw is a required object, as it came; nil when it is missing or no object.
func (f *Fields) Raw(name string) json.RawMessage {
	value := f.Value(name)
	if value != nil && !rawjson.IsObject(value) {
		f.wrongType(name, value, "dict_type", "Input should be a valid dictionary")
		return nil
	}
	return value
}

// Array is a required array, as it came; nil when it is missing or no array.
func (f *Fields) Array(name string) json.RawMessage {
	value := f.Value(name)
	if value != nil && !rawjson.IsArray(value) {
		f.wrongType(name, value, "list_type", "Input should be a valid list")
		return nil
	}
	return value
}

// Object is a required object. Its faults are those of f.
func (f *Fields) Object(name string) *Fields {
	nested := &Fields{loc: f.at(name), faults: f.faults, absent: true}
	if value := f.Value(name); value != nil {
		nested.absent = false
		nested.parse(value)
	}
	return nested
}

// maxElements is how many objects a list may have: each takes far more memory than its
// text does.
const maxElements = 1_000_000

// List is the objects of an array; a field that is missing reads as an empty
// one. Their faults are those of f.
func (f *Fields) List(name string) []*Fields {
	value, there := f.object.Get(name)
	if !there {
		return nil
	}
	if !rawjson.IsArray(value) {
		f.wrongType(name, value, "list_type", "Input should be a valid list")
		return nil
	}
	elements := rawjson.FirstElements(value, maxElements+1)
	if len(elements) > maxElements {
		f.Fault(name, "too_long", fmt.Sprintf("List should have at most %d items", maxElements))
		return nil
	}
	var list []*Fields
	for i, element := range elements {
		nested := &Fields{loc: append(f.at(name), i), faults: f.faults}
		nested.parse(element)
		list = append(list, nested)
	}
	return list
}

// Rest is the object of the fields that are not named, as they came.
func (f *Fields) Rest(names ...string) json.RawMessage {
	var w rawjson.ObjectWriter
	for _, member := range f.object {
		if !slices.Contains(names, member.Name) {
			w.Member(member)
		}
	}
	return w.End().Bytes()
}

// Only notes a fault for every field that is not named.
func (f *Fields) Only(names ...string) {
	for _, member := range f.object {
		if !slices.Contains(names, member.Name) {
			f.Fault(member.Name, "extra_forbidden", "Extra inputs are not permitted")
		}
	}
}
