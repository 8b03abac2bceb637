package jsonapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

func write(w http.ResponseWriter, status int, body rawjson.Body) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	_, _ = body.WriteTo(w) // it fails when the caller has gone, and nobody is left to be told
}

func writeError(w http.ResponseWriter, err error) {
	var refusal *requests.Refusal
	if errors.As(err, &refusal) && refusal.RetryAfter > 0 {
		seconds := math.Ceil(refusal.RetryAfter.Seconds())
		w.Header().Set("Retry-After", strconv.FormatFloat(seconds, 'f', 0, 64))
	}
	write(w, statusOf(err), ErrorBody(err))
}

// ErrorBody is what an error is answered with.
func ErrorBody(err error) rawjson.Body {
	var (
		invalid requests.Invalid
		refusal *requests.Refusal
		answer  rawjson.ObjectWriter
	)
	if errors.As(err, &invalid) {
		answer.Append("detail", invalid.AppendJSON)
	} else {
		answer.Text("detail", err.Error())
	}
	if errors.As(err, &refusal) && refusal.Kind != "" {
		answer.Text("failure_kind", string(refusal.Kind))
	}
	return answer.End()
}

func statusOf(err error) int {
	var (
		invalid requests.Invalid
		refusal *requests.Refusal
	)
	switch {
	case errors.As(err, &invalid):
		return http.StatusUnprocessableEntity
	case errors.As(err, &refusal) && refusal.Status != 0:
		return refusal.Status
	}
	return http.StatusInternalServerError
}

// Marshal encodes a value with "<", ">" and "&" as they are, which encoding/json
// escapes unless told not to.
func Marshal(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}
