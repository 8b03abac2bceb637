package requests

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"example.com/turn/internal/rawjson"
)

// A Fault is one thing that is wrong with a request's body.
type Fault struct {
	Type  string // pydantic's name for it: "missing", "string_type", …
	Loc   []any  // where it is: names (string) and indices (int), from "body" on
	Msg   string // what a person reads
	Input []byte // the value at fault, JSON; nil leaves it out
}

// Invalid is every fault of a request's body. It is answered with 422.
type Invalid []Fault

// Error joins the faults, each as "body.task_data.city: Field required".
func (e Invalid) Error() string {
	texts := make([]string, len(e))
	for i, fault := range e {
		texts[i] = fault.String()
	}
	return strings.Join(texts, "; ")
}

func (f Fault) String() string {
	parts := make([]string, len(f.Loc))
	for i, part := range f.Loc {
		parts[i] = fmt.Sprint(part)
	}
	return strings.Join(parts, ".") + ": " + f.Msg
}

// AppendJSON appends the list as FastAPI answers it under "detail".
func (e Invalid) AppendJSON(dst []byte) []byte {
	dst = append(dst, '[')
	for i, fault := range e {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fault.appendJSON(dst)
	}
	return append(dst, ']')
}

func (f Fault) appendJSON(dst []byte) []byte {
	var w rawjson.ObjectWriter
	w.Text("type", f.Type)
	w.Append("loc", f.appendLoc)
	w.Text("msg", f.Msg)
	if f.Input != nil {
		w.Value("input", f.Input)
	}
	return append(dst, w.End().Bytes()...)
}

func (f Fault) appendLoc(dst []byte) []byte {
	dst = append(dst, '[')
	for i, part := range f.Loc {
		if i > 0 {
			dst = append(dst, ',')
		}
		if index, ok := part.(int); ok {
			dst = fmt.Append(dst, index)
			continue
		}
		dst = rawjson.AppendText(dst, fmt.Sprint(part))
	}
	return append(dst, ']')
}

// maxFaults is how many faults are listed. A body may be made of nothing else, and
// its answer should not be as long as it is.
const maxFaults = 100

// maxText is how many bytes of a name or a message a fault has: both may hold what
// the body says.
const maxText = 500

// faults are those of one body.
type faults struct {
	listed Invalid
	more   int // that are not listed
}

func (f *faults) len() int { return len(f.listed) + f.more }

func (f *faults) add(fault Fault) {
	if len(f.listed) == maxFaults {
		f.more++
		return
	}
	fault.Msg = shortened(fault.Msg)
	f.listed = append(f.listed, fault)
}

// shortened is a text as an answer can have it: UTF-8, and not too long.
func shortened(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxText {
		return text
	}
	end := maxText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
