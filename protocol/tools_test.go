package protocol_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
)

func TestToolAccessesAsJSON(t *testing.T) {
	direct := protocol.NewDirectHTTPAccess("weather", "http://127.0.0.1:9001", []protocol.Pair{{"session", `a "b"`}, {"route", "<2>"}})
	mcp, err := protocol.NewMCPAccess("http://127.0.0.1:9001", protocol.MCPTools{
		ServerName: "weather_tools", URLPath: "/mcp", Transport: "http", Headers: []protocol.Pair{{"X-Session", "s&1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const (
		directJSON = `{"kind":"direct_http","name":"weather.direct_http","required":true,"base_url":"http://127.0.0.1:9001/","cookies":{"session":"a \"b\"","route":"<2>"},"headers":{}}`
		mcpJSON    = `{"kind":"mcp","name":"weather_tools","required":true,"connection":{"transport":"streamable_http","url":"http://127.0.0.1:9001/mcp","headers":{"X-Session":"s&1"}}}`
	)
	for _, test := range []struct {
		name     string
		accesses []protocol.ToolAccess
		want     string
	}{
		{"none", nil, `[]`},
		{"direct", []protocol.ToolAccess{direct}, `[` + directJSON + `]`},
		{"both in the order asked for", []protocol.ToolAccess{mcp, direct}, `[` + mcpJSON + `,` + directJSON + `]`},
		{
			"nothing to say", []protocol.ToolAccess{protocol.NewDirectHTTPAccess("r", "http://h", nil), protocol.MCPAccess{Name: "m", URL: "http://h/mcp"}},
			`[{"kind":"direct_http","name":"r.direct_http","required":true,"base_url":"http://h/","cookies":{},"headers":{}},` +
				`{"kind":"mcp","name":"m","required":true,"connection":{"transport":"streamable_http","url":"http://h/mcp","headers":{}}}]`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, string(protocol.AppendToolAccesses(nil, test.accesses))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDirectHTTPBaseURLEndsInOneSlash(t *testing.T) {
	for base, want := range map[string]string{
		"http://h:1":      "http://h:1/",
		"http://h:1/":     "http://h:1/",
		"http://h:1/api":  "http://h:1/api/",
		"http://h:1/a///": "http://h:1/a/",
	} {
		if got := protocol.NewDirectHTTPAccess("r", base, nil).BaseURL; got != want {
			t.Errorf("the base URL of %s is %s, want %s", base, got, want)
		}
	}
}

func TestMCPURL(t *testing.T) {
	for _, test := range []struct{ name, base, path, want string }{
		{"the usual", "http://h:1", "/mcp", "http://h:1/mcp"},
		{"a base with a slash", "http://h:1/", "/mcp", "http://h:1/mcp"},
		{"a base with a path", "http://h:1/api", "/mcp", "http://h:1/api/mcp"},
		{"no leading slash", "http://h:1", "mcp", "http://h:1/mcp"},
		{"leading slashes", "http://h:1", "//deep/mcp/", "http://h:1/deep/mcp/"},
		{"what looks like a host", "http://h:1", "//evil.example/mcp", "http://h:1/evil.example/mcp"},
		{"what looks like a user", "http://h:1", "@evil.example", "http://h:1/@evil.example"},
		{"what looks like a URL", "http://h:1", "https://evil.example/mcp", "http://h:1/https://evil.example/mcp"},
		{"no path", "http://h:1", "", "http://h:1/"},
		{"dots within a name", "http://h:1", "/v1.2/..mcp../...", "http://h:1/v1.2/..mcp../..."},
		{"an escape", "http://h:1", "/a%20b", "http://h:1/a%20b"},
		{"a query", "http://h:1", "/mcp?token=1/../2", "http://h:1/mcp?token=1/../2"},
		{"only a query", "http://h:1", "/?next=/../2", "http://h:1/?next=/../2"},
		{"a fragment", "http://h:1", "/mcp#/../2", "http://h:1/mcp#/../2"},
		{"a character right behind the space", "http://h:1", "/!mcp~", "http://h:1/!mcp~"},
		{"letters at the ends", "http://h:1/X", "Xmcp", "http://h:1/X/Xmcp"},
		{"beyond ASCII", "http://h:1", "/værktøj", "http://h:1/værktøj"},
	} {
		t.Run(test.name, func(t *testing.T) {
			access, err := protocol.NewMCPAccess(test.base, protocol.MCPTools{ServerName: "m", URLPath: test.path, Transport: "http"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, access.URL); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewMCPAccessRefuses(t *testing.T) {
	const (
		plain  = "resources_tools.url_path holds a character that no URL path has"
		leaves = "resources_tools.url_path leaves the server's base URL"
	)
	for _, test := range []struct{ path, why string }{
		{`/\evil.example`, plain},
		{"/m cp", plain},
		{"/mcp\r\nX: 1", plain},
		{"/mcp\x00", plain},
		{"/mcp\x7f", plain},
		{"/..", leaves},
		{"/../admin", leaves},
		{"/mcp/../../admin", leaves},
		{"/./mcp", leaves},
		{"/%2e%2E/admin", leaves},
		{"/.%2e", leaves},
		{"/..%2fadmin", leaves},
		{"/..%2Fadmin", leaves},
		{"/mcp%2f..%2f..%2fadmin", leaves},
		{"/..%5cadmin", leaves},
		{"/..;/admin", leaves},
		{"/%2e%2e;x=1/admin", leaves},
		{"/mcp/..?x", leaves},
		{"/mcp/..#x", leaves},
		{"/mcp\u0085", plain},
		{"/mcp\t", plain},
		{"/%zz", "resources_tools.url_path is no path of a URL"},
		{"/%", "resources_tools.url_path is no path of a URL"},
	} {
		_, err := protocol.NewMCPAccess("http://h:1", protocol.MCPTools{ServerName: "m", URLPath: test.path, Transport: "http"})
		if err == nil || err.Error() != test.why { // and no more: the path may hold a secret
			t.Errorf("NewMCPAccess of the path %q says %v, want %s", test.path, err, test.why)
		}
	}
	for _, transport := range []string{"stdio", "sse", "HTTP", ""} {
		_, err := protocol.NewMCPAccess("http://h:1", protocol.MCPTools{ServerName: "m", URLPath: "/mcp", Transport: transport})
		if want := fmt.Sprintf("the MCP transport %q is not http", transport); err == nil || err.Error() != want {
			t.Errorf("NewMCPAccess of the transport %q says %v, want %s", transport, err, want)
		}
	}
}

func TestParseMCPTools(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        protocol.MCPTools
	}{
		{"defaults", `{"server_name":"m"}`, protocol.MCPTools{ServerName: "m", URLPath: "/mcp", Transport: "http"}},
		{
			"everything, headers in their order, what is not known ignored",
			`{"headers":{"B":"2","A":"1"},"transport":"stdio","url_path":"x","server_name":"m","version":3}`,
			protocol.MCPTools{ServerName: "m", URLPath: "x", Transport: "stdio", Headers: []protocol.Pair{{"B", "2"}, {"A", "1"}}},
		},
		{"no headers", `{"server_name":"m","headers":{}}`, protocol.MCPTools{ServerName: "m", URLPath: "/mcp", Transport: "http", Headers: []protocol.Pair{}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := protocol.ParseMCPTools([]byte(test.value))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseMCPToolsNamesTheFault(t *testing.T) {
	for _, test := range []struct{ value, want string }{
		{`null`, "resources_tools: want an object, got null"},
		{`"mcp"`, "resources_tools: want an object, got a string"},
		{`[]`, "resources_tools: want an object, got an array"},
		{`{`, "resources_tools: not JSON: the text ends where a name in quotes should be at byte 1"},
		{`{}`, "resources_tools.server_name: want a string, got nothing"},
		{`{"server_name":null}`, "resources_tools.server_name: want a string, got null"},
		{`{"server_name":1}`, "resources_tools.server_name: want a string, got a number"},
		{`{"server_name":"m","url_path":null}`, "resources_tools.url_path: want a string, got null"},
		{`{"server_name":"m","transport":true}`, "resources_tools.transport: want a string, got a boolean"},
		{`{"server_name":"m","headers":[]}`, "resources_tools.headers: want an object, got an array"},
		{`{"server_name":"m","headers":{"X":1}}`, `resources_tools.headers: want a string as the value of "X", got a number`},
	} {
		_, err := protocol.ParseMCPTools([]byte(test.value))
		if err == nil || err.Error() != test.want {
			t.Errorf("ParseMCPTools(%s) says %v, want %s", test.value, err, test.want)
		}
	}
}

func TestCheckToolTransports(t *testing.T) {
	for _, test := range []struct {
		list []protocol.ToolTransport
		want string
	}{
		{nil, ""},
		{[]protocol.ToolTransport{protocol.MCP}, ""},
		{[]protocol.ToolTransport{protocol.MCP, protocol.DirectHTTP}, ""},
		{[]protocol.ToolTransport{protocol.MCP, protocol.MCP}, "tool transport mcp is named twice"},
		{[]protocol.ToolTransport{"MCP"}, `tool transport "MCP" is neither direct_http nor mcp`},
		{[]protocol.ToolTransport{""}, `tool transport "" is neither direct_http nor mcp`},
	} {
		got := ""
		if err := protocol.CheckToolTransports(test.list); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("CheckToolTransports(%q) says %q, want %q", test.list, got, test.want)
		}
	}
}

func TestCheckToolAccesses(t *testing.T) {
	const pattern = "must begin with a letter or digit and hold only letters, digits, '.', '_' and '-'"
	mcp := func(name string) protocol.ToolAccess { return protocol.MCPAccess{Name: name} }
	direct := func(name string) protocol.ToolAccess { return protocol.NewDirectHTTPAccess(name, "http://h", nil) }
	for _, test := range []struct {
		name     string
		accesses []protocol.ToolAccess
		want     string
	}{
		{"none", nil, ""},
		{"two names", []protocol.ToolAccess{direct("weather"), mcp("weather")}, ""},
		{"names that differ in case", []protocol.ToolAccess{mcp("a"), mcp("A")}, ""},
		{"one name twice", []protocol.ToolAccess{direct("weather"), mcp("weather.direct_http")}, `tool access name "weather.direct_http" is there twice`},
		{"no name", []protocol.ToolAccess{mcp("")}, `tool access name "": ` + pattern},
		{"a space", []protocol.ToolAccess{mcp("my tools")}, `tool access name "my tools": ` + pattern},
		{"a newline at the end", []protocol.ToolAccess{mcp("tools\n")}, `tool access name "tools\n": ` + pattern},
		{"a resources server whose name is none", []protocol.ToolAccess{direct("my server")}, `tool access name "my server.direct_http": ` + pattern},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if err := protocol.CheckToolAccesses(test.accesses); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("CheckToolAccesses says %q, want %q", got, test.want)
			}
		})
	}
}

func ExampleNewMCPAccess() {
	tools, err := protocol.ParseMCPTools([]byte(`{"server_name": "weather", "url_path": "//deep/mcp/"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	access, err := protocol.NewMCPAccess("http://127.0.0.1:9001", tools)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(access.URL)
	// Output: http://127.0.0.1:9001/deep/mcp/
}

// What a seed reply offers is bounded before anything is done with it.
func TestParseMCPToolsIsBounded(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	for _, test := range []struct{ value, want string }{
		{`{"server_name":"m","url_path":"/` + long + `"}`, "resources_tools.url_path has 10485761 bytes, more than 8192"},
		{`{"server_name":"m","headers":{"A":"1","B":"` + long + `"}}`, "resources_tools.headers have 10485763 bytes, more than 65536"},
		{`{"server_name":"m","headers":{"` + long + `":""}}`, "resources_tools.headers have 10485760 bytes, more than 65536"},
	} {
		if _, err := protocol.ParseMCPTools([]byte(test.value)); err == nil || err.Error() != test.want {
			t.Errorf("got %.200v, want %s", err, test.want)
		}
	}
}

// The words about a name are few however long it is.
func TestLongNamesAreNotRepeated(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	_, parsed := protocol.ParsePairs([]byte(`{"` + long + `":1}`))
	_, transport := protocol.NewMCPAccess("http://h:1", protocol.MCPTools{ServerName: "m", URLPath: "/mcp", Transport: long})
	for _, err := range []error{parsed, transport, protocol.CheckToolAccesses([]protocol.ToolAccess{protocol.MCPAccess{Name: long}})} {
		if err == nil || len(err.Error()) > 400 {
			t.Errorf("got %d bytes: %.100v", len(err.Error()), err)
		}
	}
}
