package collect

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// An InputError is something wrong with a dataset, at a line where there is one.
type InputError struct {
	File string
	Line int // from 1, as an editor counts; 0 when it is about the whole file
	Err  error
}

func (e *InputError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

func (e *InputError) Unwrap() error { return e.Err }

// stdinName is how the standard input is named on the command line.
const stdinName = "-"

// IsSlow reports whether a dataset may have nothing to give for ever: it is the standard
// input, a terminal or a pipe.
func IsSlow(name string) bool {
	info, err := os.Stat(name)
	return name == stdinName || err == nil && isSlow(info)
}

func isSlow(info os.FileInfo) bool { return !info.Mode().IsRegular() && !info.IsDir() }

// openDataset opens a JSONL file, gzipped when its name ends in .gz, or the
// standard input. One that [IsSlow] is read until drain is closed, and ends with
// [ErrStopped] then.
func openDataset(name string, stdin io.Reader, drain <-chan struct{}) (io.ReadCloser, error) {
	if name == stdinName {
		return untilDrained(func() (io.ReadCloser, error) { return io.NopCloser(stdin), nil }, drain), nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, syscall.EISDIR
	}
	var dataset io.ReadCloser
	if isSlow(info) {
		dataset = untilDrained(func() (io.ReadCloser, error) { return os.Open(name) }, drain)
	} else {
		dataset, err = os.Open(name)
	}
	if err != nil || !strings.HasSuffix(name, ".gz") {
		return dataset, err
	}
	unzipped, err := gzip.NewReader(dataset)
	if err != nil {
		_ = dataset.Close()
		return nil, inputError(name, 0, err)
	}
	return gzipFile{unzipped, dataset}, nil
}

type gzipFile struct {
	*gzip.Reader
	file io.Closer
}

func (g gzipFile) Close() error { return errors.Join(g.Reader.Close(), g.file.Close()) }

// untilDrained reads what open gives until drain is closed, also when opening or
// reading it does not come to an end. What is read of it by then is lost, as it is
// when the process ends.
func untilDrained(open func() (io.ReadCloser, error), drain <-chan struct{}) io.ReadCloser {
	out, in := io.Pipe()
	go func() { // ends with its input, at the latest with the process
		from, err := open()
		if err == nil {
			_, err = io.Copy(in, from)
			_ = from.Close() // it was only read
		}
		_ = in.CloseWithError(err) // it never fails
	}()
	closed := make(chan struct{})
	go func() {
		select {
		case <-drain:
			_ = in.CloseWithError(ErrStopped) // it never fails
		case <-closed:
		}
	}()
	return drainedPipe{out, closed}
}

type drainedPipe struct {
	*io.PipeReader
	closed chan struct{}
}

func (p drainedPipe) Close() error {
	close(p.closed)
	return p.PipeReader.Close()
}

// stem is the taskset of rows that name none: the file's name without folder and
// extensions.
func stem(name string) string {
	if name == stdinName {
		return "stdin"
	}
	base := strings.TrimSuffix(filepath.Base(name), ".gz")
	if s := strings.TrimSuffix(base, filepath.Ext(base)); s != "" {
		return s
	}
	return base
}

// lines reads the lines of a JSONL text of any length. Blank ones are skipped and
// counted.
type lines struct {
	r      *bufio.Reader
	long   []byte // the last line that was longer than the buffer
	number int    // of the line that next returned last

	start, end int64 // where that line begins and the next one does, in bytes
	last       bool  // that line lacks its end
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, 256<<10)} }

var byteOrderMark = []byte("\uFEFF")

// next returns the next line that is not blank, without its end, in memory of its
// own; io.EOF after the last.
func (l *lines) next() ([]byte, error) {
	line, err := l.peek()
	return bytes.Clone(line), err
}

// peek is [lines.next] in memory that the next call takes over.
func (l *lines) peek() ([]byte, error) {
	for {
		line, err := l.line()
		l.number++
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		l.start, l.end = l.end, l.end+int64(len(line))
		l.last = err != nil
		if l.number == 1 {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, io.EOF
		}
	}
}

// line is the next line with its end. One that is longer than the buffer is put together.
func (l *lines) line() ([]byte, error) {
	part, err := l.r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return part, err
	}
	l.long = append(l.long[:0], part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		part, err = l.r.ReadSlice('\n')
		l.long = append(l.long, part...)
	}
	return l.long, err
}
