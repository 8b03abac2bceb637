package environments

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

// The weather environment. A task is a question about the weather in one city,
//
//	{"city": "Oslo"}
//
// and its tool says what the weather there is: get_weather {"city": "Oslo"}. The
// reward is 1 when the model looked that city up, else 0. Where the city's station
// does not answer, the sample is masked: the model did what it could. It keeps no
// state: the task's data comes with the answer.

const getWeather = "get_weather"

var getWeatherParameters = json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","description":"The city's name, such as Oslo."}},"required":["city"],"additionalProperties":false}`)

// silentStations are cities whose weather nobody can look up.
var silentStations = []string{"Longyearbyen"}

func openWeather(config Config) (*Environment, error) {
	resources, err := resourcesserver.New(resourcesserver.TaskEnvironment[struct{}]{
		Name: "weather",
		Seed: checkWeatherTask,
		Tools: []resourcesserver.Tool[struct{}]{{
			Name:        getWeather,
			Description: "Looks up the weather in a city right now.",
			Parameters:  getWeatherParameters,
			Stateless:   lookUpWeather,
		}},
		Verify: verifyWeather,
	}, resourcesserver.Config{Logger: config.Logger, Clock: config.Clock})
	if err != nil {
		return nil, err
	}
	return config.environment("weather", resources, playWeather)
}

// checkWeatherTask refuses a task that could not be scored, before a model works
// on it. An agent that drives its own sessions need not name the task before it has
// the answer.
func checkWeatherTask(_ context.Context, task resourcesserver.Task) (struct{}, error) {
	if task.AgentRun() {
		return struct{}{}, nil
	}
	_, err := cityOf(task.Fields())
	return struct{}{}, err
}

// cityOf is the city that an object names.
func cityOf(fields *requests.Fields) (string, error) {
	city := strings.TrimSpace(fields.Text("city"))
	if city == "" && fields.Err() == nil {
		fields.Fault("city", "string_too_short", "String should have at least 1 character")
	}
	return city, fields.Err()
}

type weather struct {
	City        string `json:"city"`
	Celsius     int    `json:"temperature_celsius"`
	Description string `json:"weather_description"`
}

// lookUpWeather is the tool. A city's weather is always the same.
func lookUpWeather(_ context.Context, arguments json.RawMessage) (any, error) {
	city, err := cityOf(requests.Read(arguments, "body"))
	if err != nil {
		return nil, err
	}
	if isSilent(city) {
		return nil, requests.RefuseAs(http.StatusServiceUnavailable, failures.ProviderUnavailable, "the weather station of %s does not answer", city)
	}
	skies := []string{"clear", "cloudy", "rainy", "foggy", "windy"}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(strings.ToLower(city))) // documented never to fail
	sum := hash.Sum32()
	sky, celsius := skies[sum%uint32(len(skies))], int(sum/8%36)-5
	return weather{
		City:        city,
		Celsius:     celsius,
		Description: fmt.Sprintf("The weather in %s is %s at %d °C.", city, sky, celsius),
	}, nil
}

// verifyWeather gives 1 to an answer whose model called the tool with the task's
// city.
func verifyWeather(_ context.Context, _ struct{}, answer resourcesserver.Answer) (resourcesserver.Verdict, error) {
	wanted, err := cityOf(requests.Read(answer.Data, "body"))
	if err != nil {
		return resourcesserver.Verdict{}, err
	}
	cities := citiesLookedUp(answer)
	verdict := resourcesserver.Verdict{Extra: map[string]any{"city": wanted, "cities_looked_up": cities}}
	right := slices.ContainsFunc(cities, func(city string) bool { return isCity(city, wanted) })
	switch {
	case right && isSilent(wanted):
		verdict.Mask, verdict.Kind = true, failures.ProviderUnavailable
		verdict.Reason = fmt.Sprintf("the weather station of %s does not answer", wanted)
	case right:
		verdict.Reward = 1
	}
	return verdict, nil
}

func isSilent(city string) bool {
	return slices.ContainsFunc(silentStations, func(silent string) bool { return isCity(city, silent) })
}

// citiesLookedUp are the cities that the model called the tool with, in order.
func citiesLookedUp(answer resourcesserver.Answer) []string {
	cities := []string{}
	for _, call := range answer.Calls() {
		if call.Name != getWeather {
			continue
		}
		if city, err := cityOf(requests.Read(call.Arguments, "body")); err == nil {
			cities = append(cities, city)
		}
	}
	return cities
}

// isCity reports whether a name is that of the wanted city, in any case and with
// or without its country behind a comma.
func isCity(name, wanted string) bool {
	city, _, _ := strings.Cut(name, ",")
	return strings.EqualFold(name, wanted) || strings.EqualFold(strings.TrimSpace(city), wanted)
}

// playWeather is the scripted model: it looks up the first city that it makes
// out in the question, once, and answers with what it was told. It is easily
// mistaken, as its tasks want some to be: it takes what follows "in" or "for" for
// the city whatever was really asked, and does what it is told about tools.
func playWeather(conversation agentserver.Conversation) agentserver.Move {
	question := conversation.LastSaid("user")
	city := cityIn(question)
	switch {
	case len(conversation.Calls) > 0:
		return agentserver.Move{Say: reportWeather(conversation.Calls[len(conversation.Calls)-1].Output)}
	case city == "":
		return agentserver.Move{Say: "Which city do you mean?"}
	case !slices.Contains(conversation.Tools, getWeather) || forbidsTools.MatchString(question):
		return agentserver.Move{Say: fmt.Sprintf("Without looking it up, I would guess that it is mild in %s.", city)}
	}
	arguments, _ := json.Marshal(map[string]string{"city": city}) // a text always encodes
	return agentserver.Move{Calls: []agentserver.ToolCall{{Name: getWeather, Arguments: arguments}}}
}

var (
	// place is a name behind a preposition: "in New York", "to Rio", "for Oslo".
	place        = regexp.MustCompile(`(?:^|\s)(?i:in|for|to|at|of|from)\s+(\p{Lu}[\p{L}'’-]*(?:\s+\p{Lu}[\p{L}'’-]*)*)`)
	forbidsTools = regexp.MustCompile(`(?i)without (?:any |using )*tools|(?:do not|don['’]t) (?:use|call) (?:any |the |your )*tools?`)
)

func cityIn(question string) string {
	match := place.FindStringSubmatch(question)
	if match == nil {
		return ""
	}
	return match[1]
}

// reportWeather words the tool's output as an answer.
func reportWeather(output string) string {
	var found weather
	if err := json.Unmarshal([]byte(output), &found); err != nil || found.Description == "" {
		return "I could not find out what the weather is."
	}
	return found.Description
}
