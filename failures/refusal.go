package failures

import (
	"bytes"
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/net/html"

	"example.com/turn/internal/rawjson"
)

// A Refusal is what a server's refusing reply says.
type Refusal struct {
	Words   string   // the innermost server's own words, never empty
	Kind    Kind     // the failure_kind that the reply names, "" when none
	Servers []string // the servers that passed the refusal on, outermost first
}

// String is the words, with the servers on the way behind them.
func (r Refusal) String() string {
	if len(r.Servers) == 0 {
		return r.Words
	}
	return r.Words + " (via " + strings.Join(r.Servers, ", ") + ")"
}

// ReadRefusal finds a refusing server's own words in the body of its reply
// (section 4). It takes whatever servers send: JSON of the shapes that Gym,
// FastAPI and model servers use, plain text, HTML, nothing at all. A reply of a
// Gym server whose own inner call was refused is unwrapped to the innermost
// body.
func ReadRefusal(status int, contentType string, body []byte) Refusal {
	r := Refusal{}
	r.read(contentType, body, maxWrappings)
	if r.Words == "" {
		r.Words = http.StatusText(status)
	}
	if r.Words == "" {
		r.Words = "status " + strconv.Itoa(status)
	}
	return r
}

// maxWrappings bounds how many servers a refusal may have come through. The
// quoting doubles with each, so that a real one is a few deep.
const maxWrappings = 64

func (r *Refusal) read(contentType string, body []byte, wrappings int) {
	body = bytes.TrimSpace(bytes.ToValidUTF8(body, []byte("\uFFFD")))
	switch {
	case rawjson.Valid(body):
		r.readJSON(body, wrappings)
	case isHTML(contentType, body):
		r.Words = textOfHTML(string(body))
	default:
		r.readText(string(body[:min(len(body), maxText)]), wrappings)
	}
}

// maxText is how many bytes are read of what is neither JSON nor a page.
const maxText = 4 << 20

func (r *Refusal) readJSON(value []byte, wrappings int) {
	if rawjson.IsString(value) {
		r.readText(textOf(value), wrappings)
	}
	if object := objectOf(value); object != nil {
		r.readText(wordsOfObject(object), wrappings)
		if r.Kind == "" {
			r.Kind = kindOfObject(object)
		}
	}
}

// readText takes text as the words, or what it wraps when it is a Gym server's
// account of an inner call.
func (r *Refusal) readText(text string, wrappings int) {
	text = strings.TrimSpace(text)
	if server, inner, ok := unwrap(text); ok && wrappings > 0 {
		r.Servers = append(r.Servers, server)
		r.read("", inner, wrappings-1)
		return
	}
	r.Words = text[:min(len(text), maxWords)]
}

// maxWords is how many bytes of a server's words are kept, which is more than a reason
// has.
const maxWords = 64 << 10

// wordsOfObject is the first usable text in the order of section 4.
func wordsOfObject(object rawjson.Object) string {
	failed := objectOf(object.Present("error"))
	for _, words := range []string{
		textOf(object.Present("failure_reason")),
		wordsOfDetail(object.Present("detail")),
		textOf(failed.Present("message")),
		textOf(object.Present("error")),
		textOf(object.Present("message")),
	} {
		if words != "" {
			return words
		}
	}
	return ""
}

// maxFaults is how many entries of a list are read. There is no room for the words
// of more, and a reply may be made of nothing else.
const maxFaults = 100

func wordsOfDetail(detail []byte) string {
	switch {
	case rawjson.IsString(detail):
		return textOf(detail)
	case rawjson.IsObject(detail):
		object := objectOf(detail)
		for _, name := range []string{"failure_reason", "reason", "message", "error"} {
			if words := textOf(object.Present(name)); words != "" {
				return words
			}
		}
	case rawjson.IsArray(detail):
		var faults []string
		for _, fault := range rawjson.FirstElements(detail, maxFaults) {
			if words := wordsOfFault(fault); words != "" {
				faults = append(faults, words)
			}
		}
		return strings.Join(faults, "; ")
	}
	return ""
}

// wordsOfFault is one entry of a validation error: "body.task_data.x: Field required".
func wordsOfFault(fault []byte) string {
	if !rawjson.IsObject(fault) {
		return textOf(fault)
	}
	object := objectOf(fault)
	msg := textOf(object.Present("msg"))
	var path []string
	if loc := object.Present("loc"); rawjson.IsArray(loc) {
		for _, part := range rawjson.FirstElements(loc, maxFaults) {
			path = append(path, partOf(part))
		}
	}
	switch {
	case len(path) == 0:
		return msg
	case msg == "":
		return strings.Join(path, ".")
	}
	return strings.Join(path, ".") + ": " + msg
}

// partOf is a part of a fault's path: a name, or an index as it is spelled.
func partOf(part []byte) string {
	if text, ok := rawjson.Text(part); ok {
		return text
	}
	return string(part)
}

// textOf is the text that a value is, "" when it is none.
func textOf(value []byte) string {
	text, _ := rawjson.Text(value)
	return strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD")) // it may have a lone surrogate
}

// objectOf is the object that a value is, nil when it is none.
func objectOf(value []byte) rawjson.Object {
	if !rawjson.IsObject(value) {
		return nil
	}
	object, _ := rawjson.ParseObject(value) // it is part of a text that has been found valid
	return object
}

// kindOfObject is the first well-formed failure_kind of the object, its detail
// or its error.
func kindOfObject(object rawjson.Object) Kind {
	for _, place := range []rawjson.Object{object, objectOf(object.Present("detail")), objectOf(object.Present("error"))} {
		if kind := Kind(place.Text("failure_kind")); kind.WellFormed() {
			return kind
		}
	}
	return ""
}

// innerCall is how a Gym server tells that a call of its own was refused; a
// Python bytes literal follows, up to the end.
var innerCall = regexp.MustCompile(`^Hit an exception in (\S+) calling an inner server: (b['"])`)

func unwrap(text string) (server string, inner []byte, ok bool) {
	match := innerCall.FindStringSubmatchIndex(text)
	if match == nil {
		return "", nil, false
	}
	inner, ok = parseBytesLiteral(text[match[4]:])
	return text[match[2]:match[3]], inner, ok
}

// parseBytesLiteral reads a Python bytes literal as repr prints it: b'…' or
// b"…", with \\, \', \", \n, \r, \t and \xNN.
func parseBytesLiteral(literal string) ([]byte, bool) {
	if len(literal) < 3 || literal[0] != 'b' || literal[len(literal)-1] != literal[1] {
		return nil, false
	}
	quote, inner := literal[1], literal[2:len(literal)-1]
	out := make([]byte, 0, len(inner))
	for i := 0; i < len(inner); i++ {
		if inner[i] == quote {
			return nil, false // the literal ends before the text does
		}
		if inner[i] != '\\' {
			out = append(out, inner[i])
			continue
		}
		i++
		if i == len(inner) {
			return nil, false
		}
		switch c := inner[i]; c {
		case '\\', '\'', '"':
			out = append(out, c)
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'x':
			if i+2 >= len(inner) {
				return nil, false
			}
			b, err := strconv.ParseUint(inner[i+1:i+3], 16, 8)
			if err != nil {
				return nil, false
			}
			out = append(out, byte(b))
			i += 2
		default:
			return nil, false
		}
	}
	return out, true
}

func isHTML(contentType string, body []byte) bool {
	if media, _, _ := mime.ParseMediaType(contentType); media == "text/html" || media == "application/xhtml+xml" {
		return true
	}
	// A text that begins and ends with a tag is a page, or a piece of one.
	return tag.Match(body[:min(len(body), 2)]) && body[len(body)-1] == '>'
}

var tag = regexp.MustCompile(`^<[A-Za-z!]`)

// part ends a piece of a page's text.
func part(of *strings.Builder) {
	if of.Len() > 0 && !strings.HasSuffix(of.String(), " ") {
		of.WriteByte(' ')
	}
}

// read adds to a page's text.
func read(into *strings.Builder, text []byte) {
	if into.Len() < maxWords {
		text = bytes.TrimSpace(text)
		into.Write(text[:min(len(text), maxWords)])
	}
}

// textOfHTML is what a person would read of a page: its text without tags, or
// its title when it has no other.
func textOfHTML(page string) string {
	tokens := html.NewTokenizer(strings.NewReader(strings.ToValidUTF8(page, "\uFFFD")))
	var seen, title strings.Builder
	within, inHead := "", false // within is the element whose text it is
	for {
		switch tokens.Next() {
		case html.ErrorToken: // the end, also that of a page that was cut off
			if text := oneLine(seen.String()); text != "" {
				return text
			}
			return oneLine(title.String())
		case html.StartTagToken:
			name, _ := tokens.TagName()
			within = string(name)
			inHead = within == "head" || inHead && belongsToHead(within)
			part(&seen)
		case html.EndTagToken:
			name, _ := tokens.TagName()
			inHead = inHead && string(name) != "head"
			within = ""
			part(&seen)
		case html.TextToken:
			switch {
			case within == "script" || within == "style":
			case !inHead:
				read(&seen, tokens.Text())
			case within == "title":
				read(&title, tokens.Text())
			}
		default:
			part(&seen)
		}
	}
}

// belongsToHead reports whether an element does not end the head that it is in.
func belongsToHead(name string) bool {
	switch name {
	case "title", "meta", "link", "base", "script", "style", "noscript", "template":
		return true
	}
	return false
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
