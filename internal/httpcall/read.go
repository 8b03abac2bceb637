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
func ReadAll(r io.Reader, announced, limit int64) ([]byte, error) {
	if announced > limit {
		return nil, ErrTooLarge
	}
	// One byte more than is expected: the read that finds the end needs room.
	body := make([]byte, 0, min(max(announced, 511), maxTrusted)+1)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			return nil, ErrTooLarge
		}
		if err == io.EOF { // not errors.Is: an EOF that something wraps is a failure of that thing
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
