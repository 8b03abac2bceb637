package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/contract"
)

// maxReplyBytes is how much of a reply is read; no rule needs a longer one.
const maxReplyBytes = 64 << 20

// CheckURL reports what is wrong with a server's base URL. It shows no part of it
// that may be a secret.
func CheckURL(text string) error {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "":
		return errors.New("want an absolute URL such as http://127.0.0.1:9001")
	case parsed.User != nil:
		return errors.New("the URL must not hold a user name or password")
	case strings.ContainsAny(text, "?#"): // also an empty one, for paths are put behind it
		return errors.New("the URL must not have a query or a fragment")
	}
	return nil
}

// A server is the one that is checked. Each call has a connection of its own: one that
// is kept may be closed by the server at any moment, which breaks no rule, and a call
// is sent once.
type server struct {
	base      string // without a slash at its end
	transport *http.Transport
	client    *http.Client
	token     protocol.Token
	secrets   failures.Secrets
}

func newServer(config Config) *server {
	transport := pool.General(config.Roots)
	transport.DisableKeepAlives = true
	s := &server{
		base:      strings.TrimRight(config.URL, "/"),
		token:     config.Token,
		transport: transport,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	s.secrets.AddToken(string(config.Token))
	return s
}

// A Call is one POST.
type Call struct {
	Path   string
	Cookie string // of the Cookie header; "": none is sent
	Body   []byte
}

// A Reply is what came of a call.
type Reply struct {
	Status int // 0: no reply came
	Header http.Header
	Body   []byte
	Err    error // why there is no reply, or not the whole of it
}

// OK reports whether the call succeeded: any status from 200 to 299 is success.
func (r Reply) OK() bool { return r.Err == nil && r.Status >= 200 && r.Status <= 299 }

// Is reports whether the call was answered with that status.
func (r Reply) Is(status int) bool { return r.Err == nil && r.Status == status }

// Want is nil when the call got the status that it should; 200 stands for any
// success.
func (r Reply) Want(what string, status int) error {
	if status == http.StatusOK && r.OK() || r.Is(status) {
		return nil
	}
	return fmt.Errorf("%s got %s, want %d", what, r, status)
}

// Same reports whether two calls were answered with the same status and bytes.
func (r Reply) Same(other Reply) bool {
	return r.Status == other.Status && bytes.Equal(r.Body, other.Body)
}

// Object is the reply's body when it is a JSON object.
func (r Reply) Object() (rawjson.Object, error) { return rawjson.ParseObject(r.Body) }

// Kind is the failure_kind that the reply names, wherever servers put it.
func (r Reply) Kind() failures.Kind {
	return failures.ReadRefusal(r.Status, r.Header.Get("Content-Type"), r.Body).Kind
}

// SetsCookie reports whether the reply sets a cookie.
func (r Reply) SetsCookie() bool { return len(r.Header["Set-Cookie"]) > 0 }

// cookieNames are the names of the cookies that a reply sets.
func (r Reply) cookieNames() []string {
	var names []string
	for _, line := range r.Header["Set-Cookie"] {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, strings.TrimSpace(name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (r Reply) String() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return strings.TrimSpace(strconv.Itoa(r.Status) + " " + http.StatusText(r.Status))
}

// post sends a call once.
func (s *server) post(ctx context.Context, call Call) Reply {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+call.Path, bytes.NewReader(call.Body))
	if err != nil {
		return Reply{Err: errors.New("no request can be made of the server's URL and the path")}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	s.authorize(request)
	if call.Cookie != "" {
		request.Header.Set("Cookie", call.Cookie)
	}
	response, err := s.client.Do(request)
	if err != nil && ctx.Err() != nil {
		return Reply{Err: context.Cause(ctx)}
	}
	if err != nil {
		return Reply{Err: withoutURL(err)}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReplyBytes+1))
	switch {
	case err != nil:
		err = fmt.Errorf("the reply broke off: %w", err)
	case len(body) > maxReplyBytes:
		err = fmt.Errorf("the reply is longer than %d bytes", maxReplyBytes)
	}
	reply := Reply{Status: response.StatusCode, Header: response.Header, Body: body, Err: err}
	s.hide(reply)
	return reply
}

// authorize shows the server its token.
func (s *server) authorize(request *http.Request) {
	if s.token != "" {
		request.Header.Set("Authorization", s.token.Header())
	}
}

// A tlsError is the error of a connection that was not made, in words for a person.
type tlsError struct {
	words string
	err   error
}

func (e *tlsError) Error() string { return e.words }

func (e *tlsError) Unwrap() error { return e.err }

func withoutURL(err error) error {
	if words := failures.TLSWords(err); words != "" {
		return &tlsError{words, err}
	}
	var inURL *url.Error
	if errors.As(err, &inURL) {
		return inURL.Err
	}
	return err
}

// hide makes secrets of what a reply hands out: cookies, and the headers and the query
// of its resources_tools.
func (s *server) hide(reply Reply) {
	_ = cookies.NewJar(&s.secrets).MergeReply(reply.Header, time.Time{}) // what is too much is left out
	object, err := reply.Object()
	if err != nil {
		return
	}
	s.hideValues(object.Present("resources_cookies"))
	tools, err := rawjson.ParseObject(object.Present("resources_tools"))
	if err != nil {
		return
	}
	s.hideValues(tools.Present("headers"))
	_, query, _ := strings.Cut(tools.Text("url_path"), "?")
	s.hideQuery(query)
}

// hideValues makes secrets of the texts of an object.
func (s *server) hideValues(object []byte) {
	pairs, err := rawjson.ParseObject(object)
	if err != nil {
		return
	}
	for _, pair := range pairs {
		if text, ok := rawjson.Text(pair.Value); ok {
			s.secrets.Add(text)
		}
	}
}

// hideQuery makes a secret of a query, and of each of its values.
func (s *server) hideQuery(query string) {
	s.secrets.Add(query)
	for part := range strings.SplitSeq(query, "&") {
		_, value, _ := strings.Cut(part, "=")
		s.secrets.Add(value)
	}
}

// exchange is a call and its reply as a report shows them.
func (s *server) exchange(call Call, reply Reply) contract.Exchange {
	shown := contract.Exchange{
		Method:    http.MethodPost,
		Path:      call.Path,
		Cookie:    call.Cookie != "",
		Body:      s.show(call.Body),
		Status:    reply.Status,
		SetCookie: reply.cookieNames(),
		Reply:     s.show(reply.Body),
	}
	if reply.Err != nil {
		shown.Err = s.secrets.Mask(reply.Err.Error())
	}
	return shown
}

func (s *server) show(body []byte) string {
	const most = 64 << 10 // far more than a report shows
	return contract.Shorten(s.secrets.Mask(string(body[:min(len(body), most)])))
}
