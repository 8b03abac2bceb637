package jsonapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// A Handler answers a request with a JSON body, or with an error: a
// [requests.Invalid], a *[requests.Refusal], or another, which is answered with
// 500. It may set headers; it does not write.
type Handler func(w http.ResponseWriter, r *http.Request) (rawjson.Body, error)

// A Router finds the handler of a request.
type Router struct {
	// Routes maps "METHOD /path" to what answers it.
	Routes map[string]Handler
	// Logger gets what is answered with 500 or more: as warnings those that were
	// refused with a status of their own, else as errors.
	Logger zerolog.Logger
}

// ServeHTTP answers a request. A handler that panics is answered with 500, so
// that the caller learns more than that the connection broke.
func (rt *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := Path(r)
	handler, ok := rt.Routes[r.Method+" "+path]
	if !ok {
		writeError(w, rt.notFound(r.Method, path))
		return
	}
	body, err := Guarded(func() (rawjson.Body, error) { return handler(w, r) })
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		rt.Log(r.Context(), r.URL.Path, err)
		writeError(w, err)
		return
	}
	write(w, http.StatusOK, body)
}

// Healthy answers that the server is up.
func Healthy(http.ResponseWriter, *http.Request) (rawjson.Body, error) {
	return rawjson.Body{[]byte(`{"status":"ok"}`)}, nil
}

func (rt *Router) notFound(method, path string) error {
	var others []string
	for _, route := range slices.Sorted(maps.Keys(rt.Routes)) {
		if other, there := strings.CutSuffix(route, " "+path); there {
			others = append(others, other)
		}
	}
	if others != nil {
		return requests.Refuse(http.StatusMethodNotAllowed, "Method Not Allowed: %s takes %s", path, strings.Join(others, ", "))
	}
	return requests.Refuse(http.StatusNotFound, "Not Found: there is no %s %s here", method, path)
}

// A panicError is a bug of a handler, with the stack that it happened on.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("a bug in this server: %v", e.value) }

// Is tells the panic that means "drop the connection" from a bug.
func (e *panicError) Is(target error) bool {
	return target == http.ErrAbortHandler && e.value == target //nolint:errorlint // net/http compares it this way
}

// Guarded makes an error of a panic of the call.
func Guarded(call func() (rawjson.Body, error)) (body rawjson.Body, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value: value, stack: debug.Stack()}
		}
	}()
	return call()
}

// Log logs an error of a request for whoever runs the server, loud when it is the
// server that failed, and less so when it has words of its own for that: a provider is
// down, a model does not answer. The path names the rollout where the driver's did.
func (rt *Router) Log(ctx context.Context, path string, err error) {
	var (
		panicked *panicError
		refusal  *requests.Refusal
	)
	switch {
	case errors.As(err, &panicked):
		rt.Logger.Error().Str("path", path).Bytes("stack", panicked.stack).Msg(panicked.Error())
	case ctx.Err() != nil:
		rt.Logger.Debug().Str("path", path).Msg("the caller went away")
	case statusOf(err) >= http.StatusInternalServerError && errors.As(err, &refusal) && refusal.Status != 0:
		rt.Logger.Warn().Str("path", path).Str("failure_kind", string(refusal.Kind)).Err(err).Msg("request failed")
	case statusOf(err) >= http.StatusInternalServerError:
		rt.Logger.Error().Str("path", path).Err(err).Msg("request failed")
	default:
		rt.Logger.Debug().Str("path", path).Err(err).Msg("request refused")
	}
}

const (
	capturePrefix = "/ng-rollout/"
	tokenCapture  = "/training-token-capture"
)

// Path is the path of a request without the prefix of a captured rollout.
func Path(r *http.Request) string {
	path := r.URL.Path
	key, ok := strings.CutPrefix(path, capturePrefix)
	if !ok {
		return path
	}
	slash := strings.IndexByte(key, '/')
	if slash < 1 {
		return path
	}
	rest := key[slash:]
	if inner, ok := strings.CutPrefix(rest, tokenCapture); ok && strings.HasPrefix(inner, "/") {
		return inner
	}
	return rest
}
