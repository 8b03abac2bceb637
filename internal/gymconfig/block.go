package gymconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/turn/internal/httpserve"
	"example.com/turn/protocol"
)

// faults are what is wrong with the parts of a configuration that were read.
type faults struct{ errs []error }

func (f *faults) err() error { return errors.Join(f.errs...) }

// A block is a mapping that is read key by key. What is absent or null has the zero
// value; so has what is wrong, which is noted among the faults.
type block struct {
	config   *Config
	faults   *faults
	path     string
	settings map[string]any
	known    []string // keys that were asked for
}

// top is the block of the whole configuration.
func (c *Config) top(f *faults) *block { return &block{config: c, faults: f, settings: c.root} }

// of is the block of an instance.
func (c *Config) of(name string, in instance, f *faults) *block {
	return &block{config: c, faults: f, path: strings.Join([]string{name, in.kind, in.implementation}, "."), settings: in.settings}
}

// within is the block that is the value of a key.
func (b *block) within(key string) *block {
	inner := &block{config: b.config, faults: b.faults, path: b.pathOf(key)}
	value := b.value(key)
	settings, isBlock := value.(map[string]any)
	if value != nil && !isBlock {
		b.fault(key, fmt.Errorf("want a mapping, not %s", describe(value)))
	}
	inner.settings = settings
	return inner
}

func (b *block) pathOf(key string) string {
	if b.path == "" {
		return key
	}
	return b.path + "." + key
}

func (b *block) fault(key string, err error) {
	b.faults.errs = append(b.faults.errs, fmt.Errorf("%s: %w", b.pathOf(key), err))
}

// value is the value of a key, nil when it is absent or null.
func (b *block) value(key string) any {
	b.known = append(b.known, key)
	value, err := b.config.resolve(b.settings[key])
	if err != nil {
		b.fault(key, err)
		return nil
	}
	return value
}

// ignore takes keys as known that say nothing to this program.
func (b *block) ignore(keys ...string) { b.known = append(b.known, keys...) }

// refuseOthers finds fault with every key that nobody asked for.
func (b *block) refuseOthers() {
	for _, key := range slices.Sorted(maps.Keys(b.settings)) {
		if !slices.Contains(b.known, key) {
			b.fault(key, errors.New("there is no such key"))
		}
	}
}

func (b *block) text(key string) string {
	value := b.value(key)
	text, isText := value.(string)
	if value != nil && !isText {
		b.fault(key, fmt.Errorf("want a text, not %s", describe(value)))
	}
	return text
}

func (b *block) truth(key string) bool {
	value := b.value(key)
	truth, isBool := value.(bool)
	if value != nil && !isBool {
		b.fault(key, fmt.Errorf("want true or false, not %s", describe(value)))
	}
	return truth
}

// whole is a whole number between the two.
func (b *block) whole(key string, least, most int) int {
	value := b.value(key)
	if value == nil {
		return 0
	}
	number, ok := number(value)
	if !ok || number != math.Trunc(number) || number < float64(least) || number > float64(most) {
		b.fault(key, fmt.Errorf("want a whole number from %d to %d, not %s", least, most, describe(value)))
		return 0
	}
	return int(number)
}

// maxSeconds is the longest time that can be waited for: some 290 years.
const maxSeconds = float64(math.MaxInt64/time.Second) - 1

// seconds is a time of more than 0 seconds.
func (b *block) seconds(key string) time.Duration {
	value := b.value(key)
	if value == nil {
		return 0
	}
	seconds, ok := number(value)
	if ok && seconds > 0 && seconds <= maxSeconds {
		return max(time.Duration(seconds*float64(time.Second)), 1) // 0 would be no limit
	}
	b.fault(key, fmt.Errorf("want a number of seconds, more than 0, not %s", describe(value)))
	return 0
}

// number is a number, which may be written as a text: what comes of an environment
// variable is one.
func number(value any) (float64, bool) {
	var text string
	switch value := value.(type) {
	case int:
		return float64(value), true
	case float64:
		return value, true
	case json.Number:
		text = value.String()
	case string:
		text = value
	}
	number, err := strconv.ParseFloat(text, 64)
	return number, err == nil
}

func (b *block) toolTransports(key string) []protocol.ToolTransport {
	value := b.value(key)
	list, isList := value.([]any)
	if value != nil && !isList {
		b.fault(key, fmt.Errorf("want a list, not %s", describe(value)))
	}
	var transports []protocol.ToolTransport
	for _, element := range list {
		transports = append(transports, protocol.ToolTransport(fmt.Sprint(element)))
	}
	if err := protocol.CheckToolTransports(transports); err != nil {
		b.fault(key, err)
	}
	return transports
}

// address is a server's host and port, "" unless both are said.
func (b *block) address() string {
	host, port := b.text("host"), b.whole("port", 1, math.MaxUint16)
	if host == "" || port == 0 {
		return ""
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port))
}

// server is a server that the value of a key refers to by its kind and its name.
func (b *block) server(key, kind string) Server {
	ref := b.within(key)
	name := ref.text("name")
	if said := ref.text("type"); said != "" && said != kind {
		ref.fault("type", fmt.Errorf("want %s, not %q", kind, said))
	}
	ref.refuseOthers()
	if name == "" {
		if ref.settings["name"] == nil {
			ref.fault("name", errors.New("it is needed"))
		}
		return Server{}
	}
	in, _ := b.config.instance(name)
	if in.kind != kind {
		ref.fault("name", fmt.Errorf("there is no %q among the %s", name, kind))
		return Server{Name: name}
	}
	address := b.config.of(name, in, b.faults).address()
	if address == "" {
		ref.fault("name", fmt.Errorf("%q has no host and port: NeMo Gym gives it some when it starts, and its head server tells them", name))
		return Server{Name: name}
	}
	return Server{Name: name, URL: "http://" + httpserve.Dialable(address)}
}

// captures reports whether token ids of an agent's model calls are captured: where it
// is enabled, for all agents or for this one.
func (c *Config) captures(f *faults, agent string) bool {
	capture := c.top(f).within("token_id_capture")
	if !capture.truth("enabled") {
		return false
	}
	if capture.truth("all_agents") {
		return true
	}
	in, _ := c.instance(agent)
	return c.of(agent, in, f).truth("token_id_capture")
}

// describe says what a value is. It repeats no text, which may be a secret.
func describe(value any) string {
	switch value := value.(type) {
	case nil:
		return "null"
	case string:
		return "a text"
	case []any:
		return "a list"
	case map[string]any, map[any]any:
		return "a mapping"
	case bool, int, int64, uint64, float64, json.Number:
		return fmt.Sprint(value)
	}
	return "a value of another kind"
}
