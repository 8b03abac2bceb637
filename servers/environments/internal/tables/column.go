package tables

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// A Column is one value of a row, or one argument of a tool.
type Column struct {
	Name        string
	Description string // what a model is told of it
	Type        Type
	// Optional is a column that may be empty: missing, null or the empty text.
	Optional bool
	// Kept is a column of a change: missing and null leave the value that there is.
	Kept bool
}

// A Type is what the values of a column have in common. The zero Type is any text.
// Values are texts in one form only, so that equal ones are equal texts.
type Type struct {
	// form brings a text into the type's form. The problem says what was expected;
	// "" when the text is a value of the type. Nil: any text is.
	form    func(text string) (value, problem string)
	choices []string // nil: there are more than can be listed
	whole   bool     // in JSON it is a number
}

// Day is a date, such as 2025-03-14.
var Day = Type{form: func(text string) (string, string) {
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return "", `Input should be a date such as "2025-03-14"`
	}
	return day.Format(time.DateOnly), ""
}}

// Moment is a date and a time of day to the minute, such as 2025-03-14T09:30. It
// has no time zone: all of a table's moments are of the same place.
var Moment = Type{form: func(text string) (string, string) {
	const minutes, seconds = "2006-01-02T15:04", "2006-01-02T15:04:05"
	moment, err := time.Parse(minutes, text)
	if err != nil {
		moment, err = time.Parse(seconds, text) // models like to write :00
	}
	if err != nil || !moment.Equal(moment.Truncate(time.Minute)) {
		return "", `Input should be a date and time such as "2025-03-14T09:30"`
	}
	return moment.Format(minutes), ""
}}

var address = regexp.MustCompile(`^[a-z0-9._+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+$`)

// Address is an e-mail address, in small letters.
var Address = Type{form: func(text string) (string, string) {
	small := strings.ToLower(text)
	if !address.MatchString(small) {
		return "", `Input should be an e-mail address such as "ann@example.com"`
	}
	return small, ""
}}

// OneOf is one of a few words, in any case.
func OneOf(choices ...string) Type {
	form := func(text string) (string, string) {
		for _, choice := range choices {
			if strings.EqualFold(text, choice) {
				return choice, ""
			}
		}
		return "", "Input should be one of " + strings.Join(choices, ", ")
	}
	return Type{form: form, choices: choices}
}

// Whole is a whole number from least, which is not negative, to most.
func Whole(least, most int64) Type {
	form := func(text string) (string, string) {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil || number < least || number > most {
			return "", fmt.Sprintf("Input should be from %d to %d", least, most)
		}
		return strconv.FormatInt(number, 10), ""
	}
	return Type{form: form, whole: true}
}

// Values are those of a row, or of a tool's arguments, by column.
type Values map[string]string

// Read takes the columns' values out of an object and notes its faults. A value
// that is not given is not among them.
func Read(object *requests.Fields, columns []Column) Values {
	values := Values{}
	for _, column := range columns {
		if (column.Optional || column.Kept) && !object.Has(column.Name) {
			continue
		}
		values[column.Name] = column.read(object)
	}
	return values
}

func (c Column) read(object *requests.Fields) string {
	text := c.text(object)
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		if text != "" && !c.Optional {
			object.Fault(c.Name, "string_too_short", "String should have at least 1 character")
		}
		return ""
	}
	if c.Type.form == nil {
		return trimmed
	}
	value, problem := c.Type.form(trimmed)
	if problem != "" {
		object.Fault(c.Name, "value_error", problem)
	}
	return value
}

// text is the value as it came; "" when it is at fault, or empty and may be.
func (c Column) text(object *requests.Fields) string {
	switch {
	case c.Type.whole:
		return c.number(object)
	case c.Optional:
		return object.Text(c.Name)
	}
	return object.NonEmpty(c.Name)
}

func (c Column) number(object *requests.Fields) string {
	value := object.Value(c.Name)
	if value == nil {
		return ""
	}
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil || number != math.Trunc(number) {
		object.Fault(c.Name, "int_type", "Input should be a valid integer")
		return ""
	}
	return strconv.FormatFloat(number, 'f', 0, 64)
}

// Kept are the columns as those of a change.
func Kept(columns []Column) []Column {
	kept := slices.Clone(columns)
	for i := range kept {
		kept[i].Kept = true
	}
	return kept
}

// AppendJSON appends values as the object that [Read] reads them from, in the
// order of the columns; those that are not given are null.
func AppendJSON(dst []byte, columns []Column, values Values) []byte {
	var w rawjson.ObjectWriter
	writeValues(&w, columns, values)
	return append(dst, w.End().Bytes()...)
}

func writeValues(w *rawjson.ObjectWriter, columns []Column, values Values) {
	for _, column := range columns {
		switch value := values[column.Name]; {
		case value == "":
			w.Value(column.Name, []byte("null"))
		case column.Type.whole:
			w.Value(column.Name, []byte(value))
		default:
			w.Text(column.Name, value)
		}
	}
}

// Parameters is the JSON schema of an object with these columns, in the strict
// form: every member is there, and those that need not be may be null.
func Parameters(columns []Column) []byte {
	var w, properties rawjson.ObjectWriter
	for _, column := range columns {
		properties.Append(column.Name, column.appendSchema)
	}
	w.Text("type", "object")
	w.Body("properties", properties.End())
	w.Value("required", list(Names(columns)))
	w.Bool("additionalProperties", false)
	return w.End().Bytes()
}

func (c Column) appendSchema(dst []byte) []byte {
	typ := "string"
	if c.Type.whole {
		typ = "integer"
	}
	var w rawjson.ObjectWriter
	if c.Optional || c.Kept {
		w.Value("type", list([]string{typ, "null"}))
	} else {
		w.Text("type", typ)
	}
	w.Text("description", c.Description)
	if c.Type.choices != nil {
		w.Value("enum", c.enum())
	}
	return append(dst, w.End().Bytes()...)
}

// enum is the list of choices. A schema that allows null must list it too.
func (c Column) enum() []byte {
	choices := list(c.Type.choices)
	if c.Optional || c.Kept {
		return append(choices[:len(choices)-1], ",null]"...)
	}
	return choices
}

// Names are what the columns are called, in order.
func Names(columns []Column) []string {
	var names []string
	for _, column := range columns {
		names = append(names, column.Name)
	}
	return names
}

// list is a JSON array of texts.
func list(texts []string) []byte {
	array := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			array = append(array, ',')
		}
		array = rawjson.AppendText(array, text)
	}
	return append(array, ']')
}
