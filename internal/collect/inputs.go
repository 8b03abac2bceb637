package collect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
)

// An input is a line of the materialised inputs, of which only the key was taken: where
// nearly all is done, few are asked for their request.
type input struct {
	key    key
	place  place
	number int // of the line; 0: it was read by its place
	text   []byte
	fields rawjson.Object // of the text
}

// A place is that of a line in a file, in bytes.
type place struct{ start, size int64 }

// inputs reads materialised inputs.
type inputs struct {
	path  string
	file  *os.File
	size  int64 // when it was opened
	lines *lines
	torn  bool // what next could not read is a last line that was cut off
}

func openInputs(path string) (*inputs, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &inputs{path: path, file: file, size: info.Size(), lines: newLines(file)}, nil
}

// stillThere reports that the file has been taken away, replaced or cut: a resumption
// would not find what this run owed.
func (in *inputs) stillThere() error {
	open, err := stillNamed(in.file, in.path)
	if err == nil && open.Size() < in.size {
		err = errors.New("it has been cut during the run")
	}
	return err
}

// atEnd reports that the last line has been read.
func (in *inputs) atEnd() bool { return in.lines.end >= in.size }

func (in *inputs) close() { _ = in.file.Close() } // it was only read

// next is the next line, io.EOF after the last.
func (in *inputs) next() (input, error) {
	text, err := in.lines.next()
	if errors.Is(err, io.EOF) {
		return input{}, err
	}
	if err != nil {
		return input{}, inputError(in.path, in.lines.number, err)
	}
	k, fields, err := keyIn(text)
	if err != nil {
		in.torn = in.lines.last && !rawjson.Valid(text)
		return input{}, inputError(in.path, in.lines.number, err)
	}
	return input{k, place{in.lines.start, in.lines.end - in.lines.start}, in.lines.number, text, fields}, nil
}

// at is a line that was read before: many rollouts that wait need not be held.
func (in *inputs) at(p place) (input, error) {
	text := make([]byte, p.size)
	if _, err := in.file.ReadAt(text, p.start); err != nil {
		return input{}, inputError(in.path, 0, err)
	}
	text = bytes.TrimSpace(bytes.TrimPrefix(text, byteOrderMark))
	k, fields, err := keyIn(text)
	if err != nil {
		return input{}, inputError(in.path, 0, fmt.Errorf("the line at byte %d is not what it was: %w", p.start, err))
	}
	return input{key: k, place: p, text: text, fields: fields}, nil
}

func keyIn(text []byte) (key, rawjson.Object, error) {
	fields, err := rawjson.ParseObject(text)
	if err != nil {
		return key{}, nil, err
	}
	k, err := keyOf(fields)
	return k, fields, err
}

// request is what a line asks for.
func (in *inputs) request(e input) (*episode.Request, error) {
	row, err := episode.ReadRow(e.fields, episode.RowRules{})
	if err != nil {
		return nil, inputError(in.path, e.number, err)
	}
	return &row.Request, nil
}
