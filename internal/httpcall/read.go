package httpcall

import (
	"errors"
	"io"
)

// ErrTooLarge is the error of a body longer than its limit.
var ErrTooLarge = errors.New("the body is larger than its limit")

// maxTrusted bounds the memory that a Content-Length gets before its bytes have
// come.
const maxTrusted = 16 << 20

// ReadAll reads a body of up to limit bytes. announced is its Content-Length,
// negative when there is none: with it the body is read into memory of its size.
// Without it, or where it is too large to be trusted, the body is read in pieces and
// put together in the end, so that no more than twice its size is ever taken.
func ReadAll(r io.Reader, announced, limit int64) ([]byte, error) {
	if announced > limit {
		return nil, ErrTooLarge
	}
	var full [][]byte
	// One byte more than is expected: the read that finds the end needs room.
	expected := min(announced, maxTrusted)
	if announced < 0 {
		expected = 511
	}
	piece := make([]byte, 0, expected+1)
	for total := int64(0); ; {
		if len(piece) == cap(piece) {
			full = append(full, piece)
			piece = make([]byte, 0, max(512, total/8))
		}
		n, err := r.Read(piece[len(piece):cap(piece)])
		piece = piece[:len(piece)+n]
		if total += int64(n); total > limit {
			return nil, ErrTooLarge
		}
		if err == io.EOF { // not errors.Is: an EOF that something wraps is a failure of that thing
			return joined(full, piece), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func joined(full [][]byte, last []byte) []byte {
	if len(full) == 0 {
		return last
	}
	size := len(last)
	for _, piece := range full {
		size += len(piece)
	}
	body := make([]byte, 0, size)
	for _, piece := range full {
		body = append(body, piece...)
	}
	return append(body, last...)
}
