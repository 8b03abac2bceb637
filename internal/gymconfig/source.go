package gymconfig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// How NeMo Gym hands the configuration to a process that it starts, and the name of
// the instance that the process is.
const (
	configVariable = "NEMO_GYM_CONFIG_DICT"
	nameVariable   = "NEMO_GYM_CONFIG_PATH"
)

// FromEnvironment reads the configuration that NeMo Gym gave this process, and which
// instance it is.
func FromEnvironment() (config *Config, name string, err error) {
	text, name := os.Getenv(configVariable), os.Getenv(nameVariable)
	if text == "" || name == "" {
		return nil, "", fmt.Errorf("%s and %s must be set, as NeMo Gym sets them for a process that it starts", configVariable, nameVariable)
	}
	if config, err = Parse([]byte(text)); err != nil {
		return nil, "", fmt.Errorf("%s: %w", configVariable, err)
	}
	return config, name, nil
}

// FromFile reads a configuration from a file.
func FromFile(file string) (*Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

// maxConfig is how large a configuration may be that a head server sends, in bytes.
const maxConfig = 64 << 20

// FromHead asks a run's head server, whose base URL is given, for its configuration.
func FromHead(ctx context.Context, client *http.Client, head string) (*Config, error) {
	url := strings.TrimRight(head, "/") + "/global_config_dict_yaml"
	text, err := get(ctx, client, url)
	if err != nil {
		return nil, fmt.Errorf("the head server: %w", err)
	}
	var inner string // the reply is a JSON string that holds YAML
	if err := json.Unmarshal(text, &inner); err != nil {
		return nil, fmt.Errorf("%s: want a JSON string that holds the configuration: is this the head server's address?", url)
	}
	config, err := Parse([]byte(inner))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return config, nil
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers with status %d", url, response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = errors.New("its configuration is larger than 64 MiB")
	}
	return text, err
}
