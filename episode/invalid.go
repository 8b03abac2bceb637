package episode

import (
	"errors"
	"fmt"
	"strings"

	"example.com/turn/internal/rawjson"
)

// ErrNotUTF8 is the error of a request whose text is not UTF-8.
var ErrNotUTF8 = errors.New("the text is not UTF-8")

// An InvalidRequest lists everything that is wrong with a request. On the wire
// it is the detail of a 422, in the form that FastAPI gives it (section 3).
type InvalidRequest struct{ Faults []Fault }

// A Fault is one thing wrong with a request.
type Fault struct {
	Type  string // pydantic's name of it: "missing", "string_type", …
	Path  []string
	Msg   string
	Input []byte // the offending JSON; nil when there is none, or when it is long
}

// maxInput is how many bytes of JSON a fault shows. A request may be many MB;
// its error should not be.
const maxInput = 512

func (e *InvalidRequest) Error() string {
	texts := make([]string, len(e.Faults))
	for i, fault := range e.Faults {
		texts[i] = fault.Msg
		if len(fault.Path) > 0 {
			texts[i] = strings.Join(fault.Path, ".") + ": " + fault.Msg
		}
	}
	return strings.Join(texts, "; ")
}

// Body is the error as the body of a reply: {"detail": [{type, loc, msg, input?}]}.
func (e *InvalidRequest) Body() rawjson.Body {
	var w rawjson.ObjectWriter
	w.Append("detail", func(dst []byte) []byte {
		dst = append(dst, '[')
		for i, fault := range e.Faults {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = fault.appendJSON(dst)
		}
		return append(dst, ']')
	})
	return w.End()
}

func (f Fault) appendJSON(dst []byte) []byte {
	var w rawjson.ObjectWriter
	w.Text("type", f.Type)
	w.Append("loc", func(dst []byte) []byte {
		dst = append(dst, '[')
		for i, part := range f.Path {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = rawjson.AppendText(dst, part)
		}
		return append(dst, ']')
	})
	w.Text("msg", f.Msg)
	if f.Input != nil {
		w.Value("input", f.Input)
	}
	return append(dst, w.End().Bytes()...)
}

// faults collects what is wrong with one request.
type faults struct {
	list []Fault
	more int // faults that are not in the list
}

// maxFaults is how many faults are listed: a body may be made of nothing else.
const maxFaults = 200

func (f *faults) add(kind string, path *loc, input []byte, format string, args ...any) {
	if len(f.list) == maxFaults {
		f.more++
		return
	}
	if len(input) > maxInput {
		input = nil
	}
	f.list = append(f.list, Fault{Type: kind, Path: path.parts(), Msg: fmt.Sprintf(format, args...), Input: input})
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	list := f.list
	if f.more > 0 {
		list = append(list, Fault{Type: "value_error", Path: list[0].Path[:min(1, len(list[0].Path))], Msg: fmt.Sprintf("left out: %d more", f.more)})
	}
	return &InvalidRequest{Faults: list}
}

// A loc is where in a request something stands: a name within another place, nil for
// the whole. Nothing is made of one where there is no fault.
type loc struct {
	outer *loc
	name  string
}

func at(outer *loc, name string) *loc { return &loc{outer, name} }

// parts are the names from the outermost one on. They may be anything that a caller sends,
// and are cut.
func (p *loc) parts() []string {
	if p == nil {
		return nil
	}
	parts := p.outer.parts()
	name := p.name
	if len(name) > maxInput {
		name = strings.ToValidUTF8(name[:maxInput], "") + "…"
	}
	return append(parts, name)
}

// object takes a valid value apart that must be an object, nil when it is not.
func (f *faults) object(path *loc, value []byte) rawjson.Object {
	if !rawjson.IsObject(value) {
		f.add("dict_type", path, value, "Input should be an object, not %s", rawjson.Describe(value))
		return nil
	}
	object, err := rawjson.Members(value)
	if err != nil {
		f.add("json_invalid", path, nil, "%s", err)
		return nil
	}
	return object
}

// member is the value of a name that must be there, nil when it is not.
func (f *faults) member(object rawjson.Object, path *loc, name string) []byte {
	value, there := object.Get(name)
	if !there {
		f.add("missing", at(path, name), nil, "Field required")
		return nil
	}
	return value
}

// only refuses names other than those given.
func (f *faults) only(object rawjson.Object, path *loc, names ...string) {
	for _, member := range object {
		known := false
		for _, name := range names {
			known = known || member.Name == name
		}
		if !known {
			f.add("extra_forbidden", at(path, member.Name), member.Value, "Extra inputs are not permitted")
		}
	}
}
