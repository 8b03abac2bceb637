package rawjson

import (
	"bytes"
	"io"
	"iter"
	"math"
	"strconv"
)

// A Body is a text in pieces, in their order. The pieces are shared with whoever
// made them and must not be changed.
type Body [][]byte

// Len is the length of the text in bytes.
func (b Body) Len() int {
	n := 0
	for _, piece := range b {
		n += len(piece)
	}
	return n
}

// Bytes is the text in one piece. It copies unless the body is one already.
func (b Body) Bytes() []byte {
	if len(b) == 1 {
		return b[0]
	}
	out := make([]byte, 0, b.Len())
	for _, piece := range b {
		out = append(out, piece...)
	}
	return out
}

// Is reports whether the text is that one, to the byte.
func (b Body) Is(text []byte) bool {
	for _, piece := range b {
		if !bytes.HasPrefix(text, piece) {
			return false
		}
		text = text[len(piece):]
	}
	return len(text) == 0
}

// WriteLineTo writes the text on one line, with a line end behind it. Line breaks
// of JSON stand between its tokens only, and say nothing.
func (b Body) WriteLineTo(w io.Writer) (int64, error) {
	var written int64
	for _, piece := range b {
		for part := range unbroken(piece) {
			n, err := w.Write(part)
			written += int64(n)
			if err != nil {
				return written, err
			}
		}
	}
	n, err := w.Write([]byte{'\n'})
	return written + int64(n), err
}

// unbroken are the parts of a text between its line breaks. Most texts have none, which
// is found several times as fast for one kind of them at a time; with each part, this
// would take the square of a text of the other kind.
func unbroken(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if bytes.IndexByte(text, '\n') < 0 && bytes.IndexByte(text, '\r') < 0 {
			yield(text)
			return
		}
		for end := bytes.IndexAny(text, "\r\n"); end >= 0; end = bytes.IndexAny(text, "\r\n") {
			if !yield(text[:end]) {
				return
			}
			text = text[end+1:]
		}
		yield(text)
	}
}

// WriteTo writes the pieces to w.
func (b Body) WriteTo(w io.Writer) (int64, error) {
	var written int64
	for _, piece := range b {
		n, err := w.Write(piece)
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// NewReader returns a reader of the text. Each has a place of its own.
func (b Body) NewReader() *BodyReader { return &BodyReader{rest: b} }

// A BodyReader reads a [Body].
type BodyReader struct {
	rest Body
	at   int // bytes read of rest[0]
}

// Len is the number of bytes not read yet.
func (r *BodyReader) Len() int { return r.rest.Len() - r.at }

func (r *BodyReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && len(r.rest) > 0 {
		copied := copy(p[n:], r.rest[0][r.at:])
		n += copied
		r.at += copied
		if r.at == len(r.rest[0]) {
			r.rest, r.at = r.rest[1:], 0
		}
	}
	if n == 0 && len(r.rest) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// longValue is the size in bytes from which a value is referred to instead of
// copied: below it, copying is cheaper than one more piece.
const longValue = 512

// An ObjectWriter puts a JSON object together. Its zero value is an object
// without members. It does not look for a name that is there twice.
type ObjectWriter struct {
	pieces Body
	text   []byte // the piece being written
	begun  bool
	within bool // the object has a member
}

func (w *ObjectWriter) separate() {
	w.begin()
	if w.within {
		w.text = append(w.text, ',')
	}
	w.within = true
}

func (w *ObjectWriter) begin() {
	if !w.begun {
		w.text = append(make([]byte, 0, enoughText), '{')
		w.begun = true
	}
}

// How many bytes most objects have up to a long value, and behind it.
const (
	enoughText = 256
	enoughRest = 64
)

func (w *ObjectWriter) name(name string) {
	w.separate()
	w.text = append(AppendText(w.text, name), ':')
}

// Value adds a member whose value is JSON already.
func (w *ObjectWriter) Value(name string, value []byte) {
	w.name(name)
	w.raw(value)
}

// Body adds a member whose value is JSON already, in pieces.
func (w *ObjectWriter) Body(name string, value Body) {
	w.name(name)
	for _, piece := range value {
		w.raw(piece)
	}
}

// Member adds a member as it came.
func (w *ObjectWriter) Member(m Member) {
	w.separate()
	w.text = append(append(w.text, m.Key...), ':')
	w.raw(m.Value)
}

// Text adds a member whose value is a string.
func (w *ObjectWriter) Text(name, text string) {
	w.name(name)
	w.text = AppendText(w.text, text)
}

// Bool adds a member whose value is a boolean.
func (w *ObjectWriter) Bool(name string, value bool) {
	w.name(name)
	w.text = strconv.AppendBool(w.text, value)
}

// Int adds a member whose value is a whole number.
func (w *ObjectWriter) Int(name string, value int64) {
	w.name(name)
	w.text = strconv.AppendInt(w.text, value, 10)
}

// Float adds a member whose value is a number. JSON has none for one that is not
// finite: there is no such member then.
func (w *ObjectWriter) Float(name string, value float64) {
	if math.IsInf(value, 0) || math.IsNaN(value) {
		return
	}
	w.name(name)
	w.text = strconv.AppendFloat(w.text, value, 'g', -1, 64)
}

// Append adds a member whose value the given function appends as JSON.
func (w *ObjectWriter) Append(name string, value func([]byte) []byte) {
	w.name(name)
	w.text = value(w.text)
}

// Object adds a member whose value is the object that members adds the members of.
func (w *ObjectWriter) Object(name string, members func(*ObjectWriter)) {
	w.name(name)
	w.text, w.within = append(w.text, '{'), false
	members(w)
	w.text, w.within = append(w.text, '}'), true
}

func (w *ObjectWriter) raw(value []byte) {
	if len(value) < longValue {
		w.text = append(w.text, value...)
		return
	}
	if w.pieces == nil {
		w.pieces = make(Body, 0, 3) // most objects have one long value
	}
	w.pieces = append(w.pieces, w.text, value)
	w.text = make([]byte, 0, enoughRest)
}

// End closes the object and returns it. The writer must not be used again.
func (w *ObjectWriter) End() Body {
	w.begin()
	return append(w.pieces, append(w.text, '}'))
}
