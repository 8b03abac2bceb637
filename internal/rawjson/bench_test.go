package rawjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"example.com/turn/internal/rawjson"
)

// A maker makes texts that look like what passes through. They are up to chance, for
// what comes again and again a processor foresees, and the same each time.
type maker struct{ *rand.Rand }

func newMaker() maker { return maker{rand.New(rand.NewPCG(1, 2))} }

// sizes are those of a large body and of one as most calls have.
var sizes = []struct {
	name  string
	bytes int
}{{"5MB", 5 << 20}, {"600B", 600}}

// kinds are what bodies are made of.
var kinds = []struct {
	name string
	make func(m maker, size int) []byte
}{
	{"response", maker.response},
	{"text", maker.text},
	{"ids, as Python spaces them", func(m maker, size int) []byte { return m.list(size, ", ", m.id) }},
	{"ids", func(m maker, size int) []byte { return m.list(size, ",", m.id) }},
	{"logprobs, as Python spaces them", func(m maker, size int) []byte { return m.list(size, ", ", m.logprob) }},
	{"logprobs", func(m maker, size int) []byte { return m.list(size, ",", m.logprob) }},
	{"tool calls", maker.toolCalls},
	{"indented", maker.indented},
}

// grown is as many pieces as make a text of that size, between its beginning and its
// end.
func grown(size int, begin, between, end string, piece func() string) []byte {
	text := append([]byte(begin), piece()...)
	for len(text)+len(end) < size {
		text = append(append(text, between...), piece()...)
	}
	return append(text, end...)
}

// response is many output items with something of everything.
func (m maker) response(size int) []byte {
	item := func() string {
		return `{"type":"function_call_output","call_id":"call_` + m.hex() + `","output":"` + m.prose(30) +
			`","logprobs":[` + m.logprob() + `,-1.5e-7,0],"status":null,"ids":[` + m.id() + `,` + m.id() + `]}`
	}
	return grown(size, `{"id":"resp_1","output":[`, ",", `],"parallel_tool_calls":true}`, item)
}

// text is one long answer.
func (m maker) text(size int) []byte {
	const begin = `{"id":"resp_1","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"`
	return grown(size, begin, " ", `"}]}],"parallel_tool_calls":true}`, func() string { return m.prose(1) })
}

var words = strings.Fields(`the of and that it is temperature in a to was therefore as with measured, which not
	approximately by from Tromsø. 12 °C “clear  sky” naïve 天気 \n \n\n \"quoted\" \\frac{1}{2} \u00e9t\u00e9 def return self.value`)

// prose is words as they stand in a JSON string, some with escapes.
func (m maker) prose(n int) string {
	picked := make([]string, n)
	for i := range picked {
		picked[i] = words[m.IntN(len(words))]
	}
	return strings.Join(picked, " ")
}

func (m maker) hex() string { return strconv.FormatUint(m.Uint64(), 16) }

// id is a token's: as in a text, most are small.
func (m maker) id() string { return strconv.Itoa(m.IntN(10 << m.IntN(15))) }

// logprob has as many digits as Python prints.
func (m maker) logprob() string {
	return strconv.FormatFloat(-m.ExpFloat64()/10, 'f', -1, 64)
}

func (m maker) list(size int, between string, number func() string) []byte {
	return grown(size, `{"id":"resp_1","numbers":[`, between, `]}`, number)
}

// toolCall has a call's arguments as text, and others as they nest.
func (m maker) toolCall() string {
	return fmt.Sprintf(`{"type":"function_call","call_id":"call_%s","name":"get_weather","arguments":"{\"city\": \"%s\", \"days\": %d}",`+
		`"status":"completed","trace":{"spans":[{"tags":{"ok":%t,"parents":[[%d],[]],"error":null},"took":%.3f},{}]},"scores":[{"x":{"y":{"z":[true,%s]}}}]}`,
		m.hex(), words[m.IntN(12)], m.IntN(14), m.IntN(2) == 0, m.IntN(100), m.Float64(), m.logprob())
}

func (m maker) toolCalls(size int) []byte {
	return grown(size, `{"output":[`, ",", `]}`, m.toolCall)
}

func (m maker) indented(size int) []byte {
	return grown(size, "{\n  \"output\": [\n    ", ",\n    ", "\n  ]\n}\n", func() string {
		var item bytes.Buffer
		_ = json.Indent(&item, []byte(m.toolCall()), "    ", "  ") // a body that is not JSON fails the benchmark
		return item.String()
	})
}

var errNotJSON = errors.New("it is taken for something else than JSON")

func orNotJSON(valid bool) error {
	if !valid {
		return errNotJSON
	}
	return nil
}

// BenchmarkBody looks at bodies of all kinds. The functions of other packages, which
// only say whether it is JSON, are what it is measured by.
func BenchmarkBody(b *testing.B) {
	for _, kind := range kinds {
		for _, size := range sizes {
			body := kind.make(newMaker(), size.bytes)
			if object, err := rawjson.ParseObject(body); err != nil || len(object) == 0 {
				b.Fatalf("%.200s is read as %d members, %v", body, len(object), err)
			}
			for _, look := range []struct {
				name string
				at   func([]byte) error
			}{
				{"Check", rawjson.Check},
				{"ParseObject", func(body []byte) error { _, err := rawjson.ParseObject(body); return err }},
				{"json.Valid", func(body []byte) error { return orNotJSON(json.Valid(body)) }},
				{"gjson.ValidBytes", func(body []byte) error { return orNotJSON(gjson.ValidBytes(body)) }},
			} {
				b.Run(kind.name+"/"+size.name+"/"+look.name, func(b *testing.B) {
					b.SetBytes(int64(len(body)))
					b.ReportAllocs()
					for b.Loop() {
						if err := look.at(body); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

func BenchmarkParseWideObject(b *testing.B) {
	body := wideObject(100_000)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rawjson.ParseObject(body); err != nil {
			b.Fatal(err)
		}
	}
}

// respelled is an object twice, with nothing in it spelled the same way.
func respelled(size int) (a, b []byte) {
	m, last := newMaker(), `]}`
	for i := 0; len(a) < size/2; i++ {
		city, n := m.hex(), m.IntN(1000)
		a = fmt.Appendf(a, `,"n%d": {"city": "Troms\u00f8 %s", "days": [%d, 0.5, true]}`, i, city, n)
		last = fmt.Sprintf(`,"n%d":{"days":[%d.0,5e-1,true],"city":"Tromsø %s"}`, i, n, city) + last
	}
	a[0] = '{'
	return append(a, '}'), []byte(`{` + strings.TrimSuffix(last[1:], `]}`) + `}`)
}

func BenchmarkSame(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"64KB", 64 << 10}, {"600B", 600}} {
		one, other := respelled(size.bytes)
		if !rawjson.Valid(one) || !rawjson.Valid(other) || bytes.Equal(one, other) {
			b.Fatalf("%.200s and %.200s are not JSON in two spellings", one, other)
		}
		b.Run(size.name, func(b *testing.B) {
			b.SetBytes(int64(len(one) + len(other)))
			b.ReportAllocs()
			for b.Loop() {
				if !rawjson.Same(one, other) {
					b.Fatal("they are not the same")
				}
			}
		})
	}
}

// quoted are a text with escapes and one that JSON has as it is.
var quoted = []struct {
	name string
	make func(size int) []byte
}{
	{"escapes", func(size int) []byte {
		m := newMaker()
		return grown(size, `"`, " ", `"`, func() string { return m.prose(1) })
	}},
	{"plain", func(size int) []byte {
		m := newMaker()
		return grown(size, `"`, " ", `"`, m.hex)
	}},
}

func BenchmarkText(b *testing.B) {
	for _, kind := range quoted {
		for _, size := range sizes {
			value := kind.make(size.bytes)
			var want string
			if err := json.Unmarshal(value, &want); err != nil {
				b.Fatal(err)
			}
			if got, ok := rawjson.Text(value); !ok || got != want {
				b.Fatalf("the text of %.200s is %.200s", value, got)
			}
			b.Run(kind.name+"/"+size.name, func(b *testing.B) {
				b.SetBytes(int64(len(value)))
				b.ReportAllocs()
				for b.Loop() {
					rawjson.Text(value)
				}
			})
		}
	}
}

// BenchmarkAppendText appends to nothing, as for a field by itself, and to a buffer
// that has room.
func BenchmarkAppendText(b *testing.B) {
	for _, kind := range quoted {
		for _, size := range sizes {
			text, _ := rawjson.Text(kind.make(size.bytes))
			appended := rawjson.AppendText(nil, text)
			if got, ok := rawjson.Text(appended); !ok || got != text || !json.Valid(appended) {
				b.Fatalf("%.200s is written as %.200s", text, appended)
			}
			for _, to := range []struct {
				name string
				dst  []byte
			}{{"to nothing", nil}, {"to a buffer", make([]byte, 0, len(appended))}} {
				b.Run(kind.name+"/"+size.name+"/"+to.name, func(b *testing.B) {
					b.SetBytes(int64(len(text)))
					b.ReportAllocs()
					for b.Loop() {
						rawjson.AppendText(to.dst, text)
					}
				})
			}
		}
	}
}

// BenchmarkObjectWriter puts a body together around a large value, which costs as
// little as around a small one, and uses it in the ways there are.
func BenchmarkObjectWriter(b *testing.B) {
	for _, size := range sizes {
		value := newMaker().response(size.bytes)
		write := func() rawjson.Body {
			var w rawjson.ObjectWriter
			w.Text("id", "agent_0123456789")
			w.Int("attempt", 1)
			w.Value("response", value)
			w.Bool("ok", true)
			return w.End()
		}
		body := write()
		whole := fmt.Sprintf(`{"id":"agent_0123456789","attempt":1,"response":%s,"ok":true}`, value)
		if got := string(body.Bytes()); got != whole {
			b.Fatalf("the body is %.200s", got)
		}
		b.Run(size.name+"/End", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				write()
			}
		})
		for _, use := range []struct {
			name string
			of   func() (int64, error)
		}{
			{"Bytes", func() (int64, error) { return int64(len(body.Bytes())), nil }},
			{"WriteLineTo", func() (int64, error) { n, err := body.WriteLineTo(io.Discard); return n - 1, err }},
			{"NewReader", func() (int64, error) { return readThrough(body) }},
		} {
			b.Run(size.name+"/"+use.name, func(b *testing.B) {
				b.SetBytes(int64(len(whole)))
				b.ReportAllocs()
				for b.Loop() {
					if n, err := use.of(); err != nil || n != int64(len(whole)) {
						b.Fatalf("%d bytes of %d, %v", n, len(whole), err)
					}
				}
			})
		}
	}
}

// readBuffer is what one read of net/http's is for.
var readBuffer = make([]byte, 32<<10)

func readThrough(body rawjson.Body) (n int64, err error) {
	reader := body.NewReader()
	for err == nil {
		var read int
		read, err = reader.Read(readBuffer)
		n += int64(read)
	}
	if err == io.EOF {
		return n, nil
	}
	return n, err
}
