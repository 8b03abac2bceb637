package rawjson_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.com/turn/internal/rawjson"
)

func TestABodyReadsAsItsPiecesJoined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rawjson.Body(rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 0, 12).Draw(t, "pieces"))
		want := bytes.Join(body, nil)
		if got := body.Len(); got != len(want) {
			t.Fatalf("Len is %d, want %d", got, len(want))
		}
		if got := body.Bytes(); !bytes.Equal(got, want) {
			t.Fatalf("Bytes is %q, want %q", got, want)
		}
		other := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "other")
		if !body.Is(want) || body.Is(append(want[:len(want):len(want)], 'x')) || len(want) > 0 && body.Is(want[1:]) || body.Is(other) != bytes.Equal(other, want) {
			t.Fatalf("Is does not tell %q from other texts", want)
		}
		var written bytes.Buffer
		if n, err := body.WriteTo(&written); n != int64(len(want)) || err != nil || !bytes.Equal(written.Bytes(), want) {
			t.Fatalf("WriteTo wrote %q, %d, %v, want %q", written.Bytes(), n, err, want)
		}
		if err := iotest.TestReader(body.NewReader(), want); err != nil {
			t.Fatal(err)
		}
		reader := body.NewReader()
		var read []byte
		for reader.Len() > 0 {
			buffer := make([]byte, rapid.IntRange(0, 60).Draw(t, "size"))
			before := reader.Len()
			n, err := reader.Read(buffer)
			if err != nil || n != min(len(buffer), before) || reader.Len() != before-n {
				t.Fatalf("Read of %d bytes with %d left gives %d, %v and leaves %d", len(buffer), before, n, err, reader.Len())
			}
			read = append(read, buffer[:n]...)
		}
		if n, err := reader.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("Read at the end gives %d, %v", n, err)
		}
		if !bytes.Equal(read, want) {
			t.Fatalf("read %q, want %q", read, want)
		}
	})
}

// A line holds the same JSON, and one line end behind it.
func TestLineHasOneLineEnd(t *testing.T) {
	for _, test := range []struct {
		name string
		body rawjson.Body
		want string
	}{
		{"nothing", nil, "\n"},
		{"one line", rawjson.Body{[]byte(`{"a":1}`)}, "{\"a\":1}\n"},
		{"line breaks at every place", rawjson.Body{[]byte("\r\n{\n\"a\":\r1,"), []byte("\n"), nil, []byte("\"b\":\n\n2}\n")}, "{\"a\":1,\"b\":2}\n"},
		{"an escape is no line break", rawjson.Body{[]byte(`"a\nb"`)}, "\"a\\nb\"\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := string(bytes.Join(test.body, nil))
			var line bytes.Buffer
			n, err := test.body.WriteLineTo(&line)
			if got := line.String(); err != nil || got != test.want || n != int64(len(got)) {
				t.Errorf("the line is %q, %d bytes, %v, want %q", got, n, err, test.want)
			}
			if after := string(bytes.Join(test.body, nil)); after != before {
				t.Errorf("the body is %q after it, was %q", after, before)
			}
		})
	}
}

// A text of nothing but line breaks of one kind does not take their square.
func TestManyLineBreaksAreLeftOutInTime(t *testing.T) {
	for _, lineBreak := range []string{"\n", "\r", "\r\n"} {
		body := rawjson.Body{[]byte("[" + strings.Repeat(lineBreak, 4<<20) + "]")}
		var line bytes.Buffer
		ended := make(chan error, 1)
		go func() {
			_, err := body.WriteLineTo(&line)
			ended <- err
		}()
		select {
		case err := <-ended:
			if got := line.String(); got != "[]\n" || err != nil {
				t.Errorf("%q: the line is %.100q, %v", lineBreak, got, err)
			}
		case <-time.After(30 * time.Second): // the square would take minutes
			t.Fatalf("%q: it takes too long", lineBreak)
		}
	}
}

func TestReadersOfOneBodyAreIndependent(t *testing.T) {
	body := rawjson.Body{[]byte("ab"), nil, []byte("cd")}
	first := body.NewReader()
	_, _ = io.ReadFull(first, make([]byte, 3))
	second, err := io.ReadAll(body.NewReader())
	if err != nil || string(second) != "abcd" || first.Len() != 1 {
		t.Errorf("the second reader reads %q, %v; the first has %d left", second, err, first.Len())
	}
}

func TestWriteToStopsAtAnError(t *testing.T) {
	full := errors.New("disk full")
	n, err := rawjson.Body{[]byte("abc"), []byte("def"), []byte("ghi")}.WriteTo(&limitedWriter{left: 4, err: full})
	if n != 4 || !errors.Is(err, full) {
		t.Errorf("WriteTo gives %d, %v, want 4, %v", n, err, full)
	}
}

type limitedWriter struct {
	left int
	err  error
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	if n < len(p) {
		return n, w.err
	}
	return n, nil
}

func TestObjectWriterWritesEveryKindOfMember(t *testing.T) {
	var w rawjson.ObjectWriter
	w.Value("number", []byte("1.0"))
	w.Text("text\n", "<&>")
	w.Bool("yes", true)
	w.Bool("no", false)
	w.Int("whole", -9007199254740993)
	w.Append("appended", func(dst []byte) []byte { return append(dst, "[1]"...) })
	w.Member(rawjson.Member{Name: "a", Key: []byte(`"\u0061"`), Value: []byte(`null`)})
	w.Body("pieces", rawjson.Body{[]byte(`["a`), nil, []byte(`b"]`)})
	w.Object("object", func(w *rawjson.ObjectWriter) {
		w.Object("empty", func(*rawjson.ObjectWriter) {})
		w.Int("one", 1)
		w.Int("two", 2)
	})
	w.Object("last", func(*rawjson.ObjectWriter) {})
	want := `{"number":1.0,"text\n":"<&>","yes":true,"no":false,"whole":-9007199254740993,"appended":[1],"\u0061":null,"pieces":["ab"],` +
		`"object":{"empty":{},"one":1,"two":2},"last":{}}`
	if diff := cmp.Diff(want, string(w.End().Bytes())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var empty rawjson.ObjectWriter
	if got := string(empty.End().Bytes()); got != "{}" {
		t.Errorf("an object without members is %s", got)
	}
}

func TestObjectWriterKeepsValuesByteForByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Lengths around the one from which a value is referred to.
		values := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 30), rapid.IntRange(1015, 1030), rapid.Just(5000)), 1, 8).Draw(t, "lengths")
		var w rawjson.ObjectWriter
		var want []member
		for i, n := range values {
			name := strings.Repeat("é", i)
			value := []byte(`"` + strings.Repeat("x", n) + `"`)
			half := rapid.IntRange(0, len(value)).Draw(t, "half")
			switch rapid.IntRange(0, 2).Draw(t, "by") {
			case 0:
				w.Value(name, value)
			case 1:
				w.Body(name, rawjson.Body{value[:half], value[half:]})
			case 2:
				w.Member(rawjson.Member{Name: name, Key: rawjson.AppendText(nil, name), Value: value})
			}
			want = append(want, member{name, `"` + name + `"`, string(value)})
		}
		object, err := rawjson.ParseObject(w.End().Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, members(object)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestObjectWriterRefersToLargeValues(t *testing.T) {
	large := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	var w rawjson.ObjectWriter
	w.Text("before", "a")
	w.Value("value", large)
	w.Body("body", rawjson.Body{large})
	w.Member(rawjson.Member{Key: []byte(`"member"`), Value: large})
	w.Text("after", "b")
	shared, copied := 0, 0
	for _, piece := range w.End() {
		if len(piece) > 0 && &piece[0] == &large[0] {
			shared++
		} else {
			copied += len(piece)
		}
	}
	if shared != 3 || copied > 100 {
		t.Errorf("%d of 3 values are referred to, %d bytes copied", shared, copied)
	}
}

func ExampleObjectWriter() {
	var w rawjson.ObjectWriter
	w.Text("task_id", "weather-1")
	w.Value("task_data", []byte(`{"city": "Tromsø", "seed": 1.0}`))
	body := w.End()
	_, _ = body.WriteTo(os.Stdout)
	// Output: {"task_id":"weather-1","task_data":{"city": "Tromsø", "seed": 1.0}}
}
