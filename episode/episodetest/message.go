package episodetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// mostHead bounds what is kept of a message: its head, in bytes. It is what net/http
// allows a request.
const mostHead = 1 << 20

var errLongHead = errors.New("the head of a message is longer than 1 MiB")

// readHead reads the head of a message with the empty line that ends it, byte for
// byte. With an error it returns what there was.
func readHead(r *bufio.Reader) ([]byte, error) {
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return head, err
		}
		if len(head) > mostHead {
			return head, errLongHead
		}
		if err == nil && (bytes.HasSuffix(head, []byte("\r\n\r\n")) || bytes.HasSuffix(head, []byte("\n\n"))) {
			return head, nil
		}
	}
}

// A framing says where a body ends.
type framing struct {
	chunked bool
	length  int64 // when not chunked; -1: with the connection
}

func framingOfRequest(request *http.Request) framing {
	return framing{slices.Contains(request.TransferEncoding, "chunked"), request.ContentLength}
}

func framingOfReply(response *http.Response, method string) framing {
	if method == http.MethodHead {
		return framing{}
	}
	return framing{slices.Contains(response.TransferEncoding, "chunked"), response.ContentLength}
}

// body is what follows a head, byte for byte, chunk lines and trailers included.
func (f framing) body(r *bufio.Reader) io.Reader {
	switch {
	case f.chunked:
		return &chunks{r: r}
	case f.length < 0:
		return r
	}
	return &exactly{r, f.length}
}

// exactly is that many bytes, where fewer are an error.
type exactly struct {
	r    *bufio.Reader
	rest int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.rest == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.rest)])
	e.rest -= int64(n)
	return n, unexpected(err)
}

// chunks is a chunked body as it came.
type chunks struct {
	r    *bufio.Reader
	line []byte // read and not yet returned
	rest int64  // bytes of the chunk behind the line, its line end included
	last bool   // the chunk that ends the body has come; trailers may follow
	done bool
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.line) == 0 && c.rest == 0 {
		if c.done {
			return 0, io.EOF
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if len(c.line) > 0 {
		n := copy(p, c.line)
		c.line = c.line[n:]
		return n, nil
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.rest)])
	c.rest -= int64(n)
	return n, unexpected(err)
}

func (c *chunks) next() error {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return unexpected(err)
	}
	c.line = line
	if c.last {
		c.done = len(bytes.TrimRight(line, "\r\n")) == 0
		return nil
	}
	size, err := chunkSize(line)
	if err != nil {
		return err
	}
	c.last = size == 0
	if !c.last {
		c.rest = size + int64(len("\r\n"))
	}
	return nil
}

func chunkSize(line []byte) (int64, error) {
	digits, _, _ := strings.Cut(string(line), ";")
	size, err := strconv.ParseInt(strings.TrimSpace(digits), 16, 62)
	if err != nil || size < 0 {
		return 0, fmt.Errorf("a chunk has the size %q", digits)
	}
	return size, nil
}

// unexpected makes an end of file within a message an error.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// withLength is a head whose Content-Length is another.
func withLength(head []byte, length int64) []byte {
	var out []byte
	for line := range bytes.Lines(head) {
		if name, _, _ := bytes.Cut(line, []byte(":")); strings.EqualFold(string(name), "Content-Length") {
			line = fmt.Appendf(nil, "%s: %d\r\n", name, length)
		}
		out = append(out, line...)
	}
	return out
}

// saysLast is a head that says that its connection ends with the message, if it still
// is one.
func saysLast(head []byte) []byte {
	fields, ended := bytes.CutSuffix(head, []byte("\r\n\r\n"))
	if !ended {
		return head
	}
	return append(bytes.Clone(fields), "\r\nConnection: close\r\n\r\n"...)
}
