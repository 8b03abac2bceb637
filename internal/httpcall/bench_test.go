package httpcall_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"example.com/turn/internal/httpcall"
)

// A piecewise reader gives as much at a time as has come, as a connection does.
type piecewise struct {
	rest  []byte
	piece int
}

func (r *piecewise) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest[:min(r.piece, len(r.rest))])
	r.rest = r.rest[n:]
	return n, nil
}

// BenchmarkReadAll reads bodies whose length is announced, as most are, and others,
// which are chunked. io.ReadAll is what the latter are measured by.
func BenchmarkReadAll(b *testing.B) {
	const limit = 64 << 20
	for _, size := range []struct {
		name  string
		bytes int
	}{{"5MB", 5 << 20}, {"600B", 600}} {
		body := make([]byte, size.bytes)
		rand.NewChaCha8([32]byte{}).Read(body)
		for _, read := range []struct {
			name string
			all  func(r io.Reader) ([]byte, error)
		}{
			{"announced", func(r io.Reader) ([]byte, error) { return httpcall.ReadAll(r, int64(len(body)), limit) }},
			{"not announced", func(r io.Reader) ([]byte, error) { return httpcall.ReadAll(r, -1, limit) }},
			{"io.ReadAll", io.ReadAll},
		} {
			b.Run(size.name+"/"+read.name, func(b *testing.B) {
				if got, err := read.all(&piecewise{body, 32 << 10}); err != nil || !bytes.Equal(got, body) {
					b.Fatalf("%d bytes of %d, or others, %v", len(got), len(body), err)
				}
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := read.all(&piecewise{body, 32 << 10}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
