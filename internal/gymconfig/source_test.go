package gymconfig_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/gymconfig"
)

// headServer answers for the configuration with a text.
func headServer(t *testing.T, status int, text string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/global_config_dict_yaml" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestTheHeadServerTellsTheConfiguration(t *testing.T) {
	quoted, err := json.Marshal(sample(t))
	if err != nil {
		t.Fatal(err)
	}
	server := headServer(t, http.StatusOK, string(quoted))
	for _, url := range []string{server.URL, server.URL + "/"} {
		config, err := gymconfig.FromHead(t.Context(), server.Client(), url)
		if err != nil {
			t.Fatal(err)
		}
		environment, err := config.Environment("weather_env")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(weather(), environment); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestAHeadServerThatDoesNotTell(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		text   string
		want   string // URL stands for the server's
	}{
		{"refused", http.StatusNotFound, `{"detail":"Not Found"}`, "the head server: URL/global_config_dict_yaml answers with status 404"},
		{"no JSON", http.StatusOK, "a: 1", "URL/global_config_dict_yaml: want a JSON string that holds the configuration: is this the head server's address?"},
		{"no string", http.StatusOK, `{"status":"ok"}`, "URL/global_config_dict_yaml: want a JSON string that holds the configuration: is this the head server's address?"},
		{"no mapping", http.StatusOK, `"- a"`, "URL/global_config_dict_yaml: want a mapping of server instances"},
		{"too much", http.StatusOK, `"` + strings.Repeat("a", 64<<20), "the head server: its configuration is larger than 64 MiB"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := headServer(t, test.status, test.text)
			want := strings.ReplaceAll(test.want, "URL", server.URL)
			if _, err := gymconfig.FromHead(t.Context(), server.Client(), server.URL); err == nil || err.Error() != want {
				t.Errorf("got %v\nwant %s", err, want)
			}
		})
	}
}

func TestAHeadServerThatIsNotThere(t *testing.T) {
	server := headServer(t, http.StatusOK, "")
	server.Close()
	_, err := gymconfig.FromHead(t.Context(), http.DefaultClient, server.URL)
	if err == nil || !strings.HasPrefix(err.Error(), "the head server: ") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
}

func TestTheEnvironmentTellsTheConfiguration(t *testing.T) {
	t.Setenv("NEMO_GYM_CONFIG_DICT", sample(t))
	t.Setenv("NEMO_GYM_CONFIG_PATH", "weather_env")
	config, name, err := gymconfig.FromEnvironment()
	if err != nil || name != "weather_env" {
		t.Fatalf("%q, %v", name, err)
	}
	if _, err := config.Environment(name); err != nil {
		t.Error(err)
	}
}

func TestAnEnvironmentThatDoesNotTell(t *testing.T) {
	const unset = "NEMO_GYM_CONFIG_DICT and NEMO_GYM_CONFIG_PATH must be set, as NeMo Gym sets them for a process that it starts"
	for _, test := range []struct{ text, name, want string }{
		{"", "weather_env", unset},
		{"a: 1", "", unset},
		{"- a", "weather_env", "NEMO_GYM_CONFIG_DICT: want a mapping of server instances"},
	} {
		t.Setenv("NEMO_GYM_CONFIG_DICT", test.text)
		t.Setenv("NEMO_GYM_CONFIG_PATH", test.name)
		if _, _, err := gymconfig.FromEnvironment(); err == nil || err.Error() != test.want {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}

func TestAFileThatIsNoConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "merged.yaml")
	if _, err := gymconfig.FromFile(file); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(file, []byte("a: [1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gymconfig.FromFile(file); err == nil || !strings.HasPrefix(err.Error(), file+": yaml: ") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(file, []byte(sample(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	if config, err := gymconfig.FromFile(file); err != nil || len(config.Environments()) != 1 {
		t.Errorf("%v, %v", config, err)
	}
}
