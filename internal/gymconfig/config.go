package gymconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Config is the merged configuration of a run.
type Config struct{ root map[string]any }

// Parse reads a configuration, YAML or JSON.
func Parse(text []byte) (*Config, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	mapping, ok := root.(map[string]any)
	if !ok {
		return nil, errors.New("want a mapping of server instances")
	}
	return &Config{mapping}, nil
}

// parse reads JSON as what it is: YAML takes most of it, but not all.
func parse(text []byte) (root any, err error) {
	if json.Valid(text) {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		return root, decoder.Decode(&root)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var more any
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one YAML document")
	}
	return root, nil
}

// The kinds of server instances.
const (
	environmentServers = "environment_servers"
	resourcesServers   = "resources_servers"
	agentServers       = "responses_api_agents"
	modelServers       = "responses_api_models"
)

var kinds = []string{environmentServers, resourcesServers, agentServers, modelServers}

// Environments are the names of the instances that are environment servers, sorted.
func (c *Config) Environments() []string {
	var names []string
	for name := range c.root {
		if in, ok := c.instance(name); ok && in.kind == environmentServers {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// An instance is one server of the run.
type instance struct {
	kind           string
	implementation string
	settings       map[string]any
}

func (c *Config) instance(name string) (instance, bool) {
	entry, _ := c.root[name].(map[string]any)
	for _, kind := range kinds {
		implementations, _ := entry[kind].(map[string]any)
		if len(implementations) != 1 {
			continue
		}
		for implementation, value := range implementations {
			settings, _ := value.(map[string]any)
			return instance{kind, implementation, settings}, true
		}
	}
	return instance{}, false
}

// reference is a value that stands for another one, as OmegaConf writes it.
var reference = regexp.MustCompile(`^\$\{([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}$`)

// maxReferences is how many references may lead to a value.
const maxReferences = 10

// resolve is a value, or the one that it refers to. A value that was to be filled in
// and was not, which is written ???, is an error.
func (c *Config) resolve(value any) (any, error) {
	for range maxReferences {
		text, _ := value.(string)
		if text == "???" {
			return nil, errors.New("it was never filled in (???)")
		}
		if !strings.Contains(text, "${") {
			return value, nil
		}
		found := reference.FindStringSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("%s cannot be followed: only a reference to another value is, such as ${weather.host}", text)
		}
		var there bool
		if value, there = c.lookUp(strings.Split(found[1], ".")); !there {
			return nil, fmt.Errorf("%s names nothing", text)
		}
	}
	return nil, errors.New("its references lead from one to another without end")
}

func (c *Config) lookUp(path []string) (any, bool) {
	var value any = c.root
	for _, name := range path {
		mapping, _ := value.(map[string]any)
		var there bool
		if value, there = mapping[name]; !there {
			return nil, false
		}
	}
	return value, true
}
