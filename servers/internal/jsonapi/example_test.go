package jsonapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/requests"
)

// A route answers behind a capture key as well, and says what it refuses.
func ExampleRouter() {
	router := &jsonapi.Router{Routes: map[string]jsonapi.Handler{
		"GET /health": jsonapi.Healthy,
		"POST /close_session": func(http.ResponseWriter, *http.Request) (rawjson.Body, error) {
			return nil, requests.Refuse(http.StatusConflict, "session %s belongs to another episode", "s1")
		},
	}}
	for _, request := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/health", nil),
		httptest.NewRequest(http.MethodPost, "/ng-rollout/0-0/close_session", nil),
	} {
		w := httptest.NewRecorder()
		router.ServeHTTP(w, request)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 {"status":"ok"}
	// 409 {"detail":"session s1 belongs to another episode"}
}
