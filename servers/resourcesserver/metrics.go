package resourcesserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/requests"
)

// aggregateMetrics sums up the verify responses of a dataset run. A dataset may
// have a million, so they are read one at a time.
func (s *Server) aggregateMetrics(_ http.ResponseWriter, r *http.Request) (rawjson.Body, error) {
	if err := jsonapi.CheckContentType(r); err != nil {
		return nil, err
	}
	var rewards mean
	if err := eachVerdict(r.Body, rewards.add); err != nil {
		return nil, err
	}
	metrics := func(dst []byte) []byte { return rewards.appendJSON(dst) }
	var w rawjson.ObjectWriter
	w.Value("group_level_metrics", []byte("[]"))
	w.Append("agent_metrics", metrics)
	w.Append("key_metrics", metrics)
	w.Value("repeat_level_metrics", []byte("[]"))
	return w.End(), nil
}

// mean is the mean reward of the samples that are not masked. There is none
// without a sample: 0 would be a score.
type mean struct {
	sum   float64
	value float64 // which stays finite where the sum does not
	count int
}

func (m *mean) add(reward float64, masked bool) {
	if masked {
		return
	}
	m.count++
	n := float64(m.count)
	m.sum += reward
	m.value += reward/n - m.value/n
	if !math.IsInf(m.sum, 0) && !math.IsNaN(m.sum) {
		m.value = m.sum / n // this is exact for rewards of 0 and 1
	}
}

func (m *mean) appendJSON(dst []byte) []byte {
	if m.count == 0 {
		return append(dst, "{}"...)
	}
	dst = append(dst, `{"mean/reward":`...)
	dst = strconv.AppendFloat(dst, m.value, 'g', -1, 64)
	return append(dst, '}')
}

// eachVerdict reads {"verify_responses": [{"reward", "mask_sample", …}, …]}.
func eachVerdict(body io.Reader, visit func(reward float64, masked bool)) error {
	decoder := json.NewDecoder(body)
	decoder.UseNumber() // what is read over need not fit a float64
	if err := expect(decoder, json.Delim('{')); err != nil {
		return err
	}
	found := false
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return notJSON(decoder, err)
		}
		if name != "verify_responses" {
			if err := skip(decoder); err != nil {
				return err
			}
			continue
		}
		if err := eachElement(decoder, visit); err != nil {
			return err
		}
		found = true
	}
	if err := expect(decoder, json.Delim('}')); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return invalidJSON(decoder, "text after the object")
	}
	if !found {
		return requests.Invalid{{Type: "missing", Loc: []any{"body", "verify_responses"}, Msg: "Field required"}}
	}
	return nil
}

func eachElement(decoder *json.Decoder, visit func(reward float64, masked bool)) error {
	if err := expect(decoder, json.Delim('['), "verify_responses"); err != nil {
		return err
	}
	for i := 0; decoder.More(); i++ {
		var element json.RawMessage
		if err := decoder.Decode(&element); err != nil {
			return notJSON(decoder, err)
		}
		fields := requests.Read(element, "body", "verify_responses", i)
		reward := fields.Number("reward")
		masked := fields.Has("mask_sample") && fields.Bool("mask_sample")
		if err := fields.Err(); err != nil {
			return err
		}
		visit(reward, masked)
	}
	return expect(decoder, json.Delim(']'))
}

// skip reads over a value, of which it keeps a token at a time: a member that
// nobody asked for may be as long as all the verdicts. Token by token the decoder
// does not see how deep it is nested.
func skip(decoder *json.Decoder) error {
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return notJSON(decoder, err)
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		if depth+1 > rawjson.MaxDepth { // it is itself within an object
			return invalidJSON(decoder, fmt.Sprintf("nesting deeper than %d", rawjson.MaxDepth))
		}
	}
}

// expect reads the bracket that must come next.
func expect(decoder *json.Decoder, want json.Delim, loc ...any) error {
	token, err := decoder.Token()
	if err != nil {
		return notJSON(decoder, err)
	}
	if token == want {
		return nil
	}
	fault := requests.Fault{Type: "dict_type", Loc: append([]any{"body"}, loc...), Msg: "Input should be a valid dictionary"}
	if want == '[' {
		fault.Type, fault.Msg = "list_type", "Input should be a valid list"
	}
	return requests.Invalid{fault}
}

func notJSON(decoder *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the decoder calls the end of the text by either name
	}
	syntax := new(json.SyntaxError)
	if !errors.As(err, &syntax) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return requests.Refuse(http.StatusBadRequest, "the request's body broke off: %w", err)
	}
	return invalidJSON(decoder, err.Error())
}

func invalidJSON(decoder *json.Decoder, problem string) error {
	return requests.Invalid{{Type: "json_invalid", Loc: []any{"body", int(decoder.InputOffset())}, Msg: "JSON decode error: " + problem}}
}
