package failures

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/net/html"
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
	body = bytes.TrimSpace(body)
	var value any
	switch err := json.Unmarshal(body, &value); {
	case err == nil:
		r.readJSON(value, wrappings)
	case isHTML(contentType, body):
		r.Words = textOfHTML(string(body))
	default:
		r.readText(strings.ToValidUTF8(string(body), "\uFFFD"), wrappings)
	}
}

func (r *Refusal) readJSON(value any, wrappings int) {
	switch value := value.(type) {
	case string:
		r.readText(value, wrappings)
	case map[string]any:
		r.readText(wordsOfObject(value), wrappings)
		if r.Kind == "" {
			r.Kind = kindOfObject(value)
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
	r.Words = text
}

// wordsOfObject is the first usable text in the order of section 4.
func wordsOfObject(object map[string]any) string {
	for _, words := range []string{
		textOf(object["failure_reason"]),
		wordsOfDetail(object["detail"]),
		textOf(member(object["error"], "message")),
		textOf(object["error"]),
		textOf(object["message"]),
	} {
		if words != "" {
			return words
		}
	}
	return ""
}

func wordsOfDetail(detail any) string {
	switch detail := detail.(type) {
	case string:
		return strings.TrimSpace(detail)
	case map[string]any:
		for _, name := range []string{"failure_reason", "reason", "message", "error"} {
			if words := textOf(detail[name]); words != "" {
				return words
			}
		}
	case []any:
		var faults []string
		for _, fault := range detail {
			if words := wordsOfFault(fault); words != "" {
				faults = append(faults, words)
			}
		}
		return strings.Join(faults, "; ")
	}
	return ""
}

// wordsOfFault is one entry of a validation error: "body.task_data.x: Field required".
func wordsOfFault(fault any) string {
	object, ok := fault.(map[string]any)
	if !ok {
		return textOf(fault)
	}
	msg := textOf(object["msg"])
	path, _ := object["loc"].([]any)
	if len(path) == 0 {
		return msg
	}
	parts := make([]string, len(path))
	for i, part := range path {
		parts[i] = fmt.Sprint(part)
		if index, ok := part.(float64); ok { // 1234567, not 1.234567e+06
			parts[i] = strconv.FormatFloat(index, 'f', -1, 64)
		}
	}
	if msg == "" {
		return strings.Join(parts, ".")
	}
	return strings.Join(parts, ".") + ": " + msg
}

func textOf(value any) string {
	text, _ := value.(string)
	return strings.TrimSpace(text)
}

func member(value any, name string) any {
	object, _ := value.(map[string]any)
	return object[name]
}

// kindOfObject is the first well-formed failure_kind of the object, its detail
// or its error.
func kindOfObject(object map[string]any) Kind {
	for _, place := range []any{object, object["detail"], object["error"]} {
		text, _ := member(place, "failure_kind").(string)
		if kind := Kind(text); kind.WellFormed() {
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
	start := strings.ToLower(string(body[:min(len(body), len("<!doctype html"))]))
	return strings.HasPrefix(start, "<!doctype html") || strings.HasPrefix(start, "<html")
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
			seen.WriteByte(' ')
		case html.EndTagToken:
			name, _ := tokens.TagName()
			inHead = inHead && string(name) != "head"
			within = ""
			seen.WriteByte(' ')
		case html.TextToken:
			switch {
			case within == "script" || within == "style":
			case !inHead:
				seen.Write(tokens.Text())
			case within == "title":
				title.Write(tokens.Text())
			}
		default:
			seen.WriteByte(' ')
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
