package requests

import (
	"fmt"
	"strings"

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
