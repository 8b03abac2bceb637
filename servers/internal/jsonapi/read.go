package jsonapi

import (
	"errors"
	"io"
	"mime"
	"net/http"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// ReadObject reads a request's body, which must be a JSON object of at most
// limit bytes sent as application/json. Any other content type is refused: a
// web page can post the simple ones to a server on loopback without asking it
// first.
func ReadObject(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if err := CheckContentType(r); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, requests.Refuse(http.StatusRequestEntityTooLarge, "the request's body is longer than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, requests.Refuse(http.StatusBadRequest, "the request's body broke off: %w", err)
	}
	if err := CheckObject(body, "body"); err != nil {
		return nil, err
	}
	return body, nil
}

// CheckContentType refuses a request that is not sent as application/json.
func CheckContentType(r *http.Request) error {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "application/json" {
		return requests.Refuse(http.StatusUnsupportedMediaType, "the body must be sent as application/json")
	}
	return nil
}

// CheckObject reports why a text at that place of a request is not a JSON
// object.
func CheckObject(text []byte, loc ...any) error {
	_, err := rawjson.ParseObject(text)
	syntax := new(rawjson.SyntaxError)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax):
		return requests.Invalid{{Type: "json_invalid", Loc: append(loc, syntax.Offset), Msg: "JSON decode error: " + syntax.Problem}}
	}
	return requests.Read(text, loc...).Err()
}
