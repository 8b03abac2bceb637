package protocol

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"example.com/turn/internal/rawjson"
)

// A ToolTransport is a way for an agent to reach the tools of a resources
// session (section 2).
type ToolTransport string

const (
	DirectHTTP ToolTransport = "direct_http"
	MCP        ToolTransport = "mcp"
)

// CheckToolTransports reports why a list is not an ordered choice among the
// transports. An empty one is: the agent then gets no tools.
func CheckToolTransports(list []ToolTransport) error {
	seen := map[ToolTransport]bool{}
	for _, t := range list {
		if t != DirectHTTP && t != MCP {
			return fmt.Errorf("tool transport %q is neither %s nor %s", t, DirectHTTP, MCP)
		}
		if seen[t] {
			return fmt.Errorf("tool transport %s is named twice", t)
		}
		seen[t] = true
	}
	return nil
}

// MCPTools is what a seed reply says in resources_tools about the session's MCP
// endpoint.
type MCPTools struct {
	ServerName string
	URLPath    string // "/mcp" when the reply leaves it out
	Transport  string // "http" when the reply leaves it out
	Headers    []Pair
}

// What a seed reply may say of its MCP endpoint, in bytes: it goes into requests
// whose servers read less.
const (
	maxURLPath = 8 << 10
	maxHeaders = 64 << 10
)

// A Pair is a name and a value whose order is kept.
type Pair struct{ Name, Value string }

// ParseMCPTools reads resources_tools. The error says which field is not what
// the contract says.
func ParseMCPTools(value []byte) (MCPTools, error) {
	fields, err := rawjson.ParseObject(value)
	if err != nil {
		return MCPTools{}, fmt.Errorf("resources_tools: %w", err)
	}
	tools := MCPTools{URLPath: PathMCP, Transport: "http"}
	for _, field := range []struct {
		name     string
		into     *string
		required bool
	}{{"server_name", &tools.ServerName, true}, {"url_path", &tools.URLPath, false}, {"transport", &tools.Transport, false}} {
		value, there := fields.Get(field.name)
		if !there && !field.required {
			continue
		}
		text, ok := rawjson.Text(value)
		if !ok {
			return MCPTools{}, fmt.Errorf("resources_tools.%s: want a string, got %s", field.name, rawjson.Describe(value))
		}
		*field.into = text
	}
	if headers, there := fields.Get("headers"); there {
		if tools.Headers, err = ParsePairs(headers); err != nil {
			return MCPTools{}, fmt.Errorf("resources_tools.headers: %w", err)
		}
	}
	if len(tools.URLPath) > maxURLPath {
		return MCPTools{}, fmt.Errorf("resources_tools.url_path has %d bytes, more than %d", len(tools.URLPath), maxURLPath)
	}
	if size := sizeOf(tools.Headers); size > maxHeaders {
		return MCPTools{}, fmt.Errorf("resources_tools.headers have %d bytes, more than %d", size, maxHeaders)
	}
	return tools, nil
}

func sizeOf(pairs []Pair) int {
	size := 0
	for _, pair := range pairs {
		size += len(pair.Name) + len(pair.Value)
	}
	return size
}

// ParsePairs reads an object whose values are strings.
func ParsePairs(value []byte) ([]Pair, error) {
	fields, err := rawjson.ParseObject(value)
	if err != nil {
		return nil, err
	}
	pairs := make([]Pair, 0, len(fields))
	for _, field := range fields {
		text, ok := rawjson.Text(field.Value)
		if !ok {
			return nil, fmt.Errorf("want a string as the value of %.100q, got %s", field.Name, rawjson.Describe(field.Value))
		}
		pairs = append(pairs, Pair{field.Name, text})
	}
	return pairs, nil
}

// A ToolAccess is one entry of tool_accesses in call 3.
type ToolAccess interface {
	AccessName() string
	AppendJSON(dst []byte) []byte
}

// A DirectHTTPAccess lets the agent POST a tool's arguments to the resources
// server itself, with the session's cookies.
type DirectHTTPAccess struct {
	Name    string
	BaseURL string
	Cookies []Pair // plain values
}

// NewDirectHTTPAccess is the access to the resources server of that name. Like
// the Python client, it ends the base URL in a slash.
func NewDirectHTTPAccess(resourcesName, baseURL string, cookies []Pair) DirectHTTPAccess {
	return DirectHTTPAccess{
		Name:    resourcesName + "." + string(DirectHTTP),
		BaseURL: strings.TrimRight(baseURL, "/") + "/",
		Cookies: cookies,
	}
}

// AccessName is the access's name, unique in a session.
func (a DirectHTTPAccess) AccessName() string { return a.Name }

// AppendJSON appends the access as the wire has it.
func (a DirectHTTPAccess) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"kind":"direct_http","name":`...)
	dst = rawjson.AppendText(dst, a.Name)
	dst = append(dst, `,"required":true,"base_url":`...)
	dst = rawjson.AppendText(dst, a.BaseURL)
	dst = append(dst, `,"cookies":`...)
	dst = AppendPairs(dst, a.Cookies)
	return append(dst, `,"headers":{}}`...)
}

// An MCPAccess lets the agent use the session's MCP endpoint.
type MCPAccess struct {
	Name    string
	URL     string
	Headers []Pair
}

// NewMCPAccess is the access that a seed reply offers. The URL is the base, one
// slash and the offered path without its leading slashes. A path that would leave
// the base is refused. The error shows nothing of the path: a query in it may hold
// a token.
func NewMCPAccess(baseURL string, tools MCPTools) (MCPAccess, error) {
	if tools.Transport != "http" {
		return MCPAccess{}, fmt.Errorf("the MCP transport %.100q is not http", tools.Transport)
	}
	path := strings.TrimLeft(tools.URLPath, "/")
	if strings.ContainsFunc(path, func(r rune) bool { return r == ' ' || r == '\\' || unicode.IsControl(r) }) {
		return MCPAccess{}, errors.New("resources_tools.url_path holds a character that no URL path has")
	}
	address, err := url.Parse("/" + path)
	if err != nil { // which would quote it
		return MCPAccess{}, errors.New("resources_tools.url_path is no path of a URL")
	}
	if climbs(address.Path) {
		return MCPAccess{}, errors.New("resources_tools.url_path leaves the server's base URL")
	}
	return MCPAccess{Name: tools.ServerName, URL: strings.TrimRight(baseURL, "/") + "/" + path, Headers: tools.Headers}, nil
}

// climbs reports whether somebody on the way may take a path, which has its escapes
// undone, for that of another place: by a segment of dots, also with parameters behind
// them or between slashes of the other kind.
func climbs(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if name, _, _ := strings.Cut(segment, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

// AccessName is the access's name, unique in a session.
func (a MCPAccess) AccessName() string { return a.Name }

// AppendJSON appends the access as the wire has it.
func (a MCPAccess) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"kind":"mcp","name":`...)
	dst = rawjson.AppendText(dst, a.Name)
	dst = append(dst, `,"required":true,"connection":{"transport":"streamable_http","url":`...)
	dst = rawjson.AppendText(dst, a.URL)
	dst = append(dst, `,"headers":`...)
	dst = AppendPairs(dst, a.Headers)
	return append(dst, `}}`...)
}

// CheckToolAccesses reports a name that is not one or is there twice.
func CheckToolAccesses(accesses []ToolAccess) error {
	seen := map[string]bool{}
	for _, access := range accesses {
		name := access.AccessName()
		if err := CheckName(name); err != nil {
			return fmt.Errorf("tool access name %.100q: %w", name, err)
		}
		if seen[name] {
			return fmt.Errorf("tool access name %.100q is there twice", name)
		}
		seen[name] = true
	}
	return nil
}

// AppendToolAccesses appends the list as the wire has it.
func AppendToolAccesses(dst []byte, accesses []ToolAccess) []byte {
	dst = append(dst, '[')
	for i, access := range accesses {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = access.AppendJSON(dst)
	}
	return append(dst, ']')
}

// AppendPairs appends pairs as a JSON object of strings.
func AppendPairs(dst []byte, pairs []Pair) []byte {
	dst = append(dst, '{')
	for i, pair := range pairs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(rawjson.AppendText(dst, pair.Name), ':')
		dst = rawjson.AppendText(dst, pair.Value)
	}
	return append(dst, '}')
}
