package environments_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/environments"
)

func weatherRow(data, params string) row {
	var task row
	task.TaskID = json.RawMessage(`{"taskset":"weather","task_id":"0"}`)
	task.TaskInput.Data, task.TaskInput.Params = json.RawMessage(data), json.RawMessage(params)
	return task
}

func TestGetWeatherTool(t *testing.T) {
	s := open(t, "weather")
	s.seed("a", weatherRow(`{"city":"Oslo"}`, `{}`))
	for _, test := range []struct {
		arguments string
		status    int
		want      string
	}{
		{`{"city":"Oslo"}`, 200, `{"city":"Oslo","temperature_celsius":4,"weather_description":"The weather in Oslo is clear at 4 °C."}`},
		{`{"city":" oslo"}`, 200, `{"city":"oslo","temperature_celsius":4,"weather_description":"The weather in oslo is clear at 4 °C."}`},
		{`{"city":"Bergen"}`, 200, `{"city":"Bergen","temperature_celsius":25,"weather_description":"The weather in Bergen is clear at 25 °C."}`},
		{`{"city":"Longyearbyen"}`, 503, `{"detail":"the weather station of Longyearbyen does not answer","failure_kind":"provider_unavailable"}`},
		{`{"town":"Oslo"}`, 422, `{"detail":[{"type":"missing","loc":["body","city"],"msg":"Field required"}]}`},
		{`{"city":["Oslo"]}`, 422, `{"detail":[{"type":"string_type","loc":["body","city"],"msg":"Input should be a valid string"}]}`},
	} {
		status, answer, _ := s.post(s.resources+"/get_weather", s.resourcesJar, test.arguments)
		if status != test.status || answer != test.want {
			t.Errorf("%s: got %d %s, want %d %s", test.arguments, status, answer, test.status, test.want)
		}
	}
}

func TestAWeatherTaskNamesACity(t *testing.T) {
	s := open(t, "weather")
	for _, test := range []struct{ data, want string }{
		{`{}`, `{"detail":[{"type":"missing","loc":["body","task_data","city"],"msg":"Field required"}]}`},
		{`{"city":5}`, `{"detail":[{"type":"string_type","loc":["body","task_data","city"],"msg":"Input should be a valid string","input":5}]}`},
		{`{"city":" "}`, `{"detail":[{"type":"string_too_short","loc":["body","task_data","city"],"msg":"String should have at least 1 character"}]}`},
	} {
		status, answer, cookie := s.post(s.resources+"/seed_session", "", fmt.Sprintf(
			`{"resources_session_id":"a","episode_id":%s,"task_id":{"taskset":"weather","task_id":"0"},"task_data":%s}`, episode, test.data))
		if status != http.StatusUnprocessableEntity || answer != test.want || cookie != "" {
			t.Errorf("%s: got %d %s %s, want 422 %s", test.data, status, answer, cookie, test.want)
		}
	}
	if n := s.environment.Resources.Open(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}

func TestWeatherReward(t *testing.T) {
	call := func(name, arguments string) string {
		return fmt.Sprintf(`{"type":"function_call","call_id":"c","name":%q,"arguments":%q}`, name, arguments)
	}
	s := open(t, "weather")
	task := weatherRow(`{"city":"Rio de Janeiro"}`, `{}`)
	s.seed("a", task)
	for _, test := range []struct {
		name, items string
		reward      float64
		cities      []any
	}{
		{"the city", call("get_weather", `{"city":"Rio de Janeiro"}`), 1, []any{"Rio de Janeiro"}},
		{"in another case, with its country", call("get_weather", `{"city":"rio de janeiro, Brazil"}`), 1, []any{"rio de janeiro, Brazil"}},
		{"among others", call("get_weather", `{"city":"Paris"}`) + "," + call("get_weather", `{"city":"Rio de Janeiro"}`), 1, []any{"Paris", "Rio de Janeiro"}},
		{"half of it", call("get_weather", `{"city":"Rio"}`), 0, []any{"Rio"}},
		{"another tool", call("get_whether", `{"city":"Rio de Janeiro"}`), 0, []any{}},
		{"arguments that are none", call("get_weather", `{"city":`), 0, []any{}},
		{"a city that is no text", call("get_weather", `{"city":5}`), 0, []any{}},
		{"only a word of it", `{"type":"message","role":"assistant","content":"Rio de Janeiro"}`, 0, []any{}},
		{"nothing", ``, 0, []any{}},
	} {
		want := map[string]any{
			"reward": test.reward, "mask_sample": false, "failure_kind": nil, "failure_reason": nil,
			"city": "Rio de Janeiro", "cities_looked_up": test.cities,
		}
		if diff := cmp.Diff(want, s.verify(task, `{"output":[`+test.items+`]}`)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// A model that asked for the right city is not to blame for a station that does not
// answer, one that did not is.
func TestAWeatherStationThatDoesNotAnswerMasks(t *testing.T) {
	s := open(t, "weather")
	task := weatherRow(`{"city":"Longyearbyen"}`, `{}`)
	s.seed("a", task)
	for city, want := range map[string]map[string]any{
		"Longyearbyen": {"reward": 0.0, "mask_sample": true, "failure_kind": "provider_unavailable", "failure_reason": "the weather station of Longyearbyen does not answer"},
		"Oslo":         {"reward": 0.0, "mask_sample": false, "failure_kind": nil, "failure_reason": nil},
	} {
		want["city"], want["cities_looked_up"] = "Longyearbyen", []any{city}
		arguments := fmt.Sprintf(`{"city":%q}`, city)
		verdict := s.verify(task, fmt.Sprintf(`{"output":[{"type":"function_call","name":"get_weather","arguments":%q}]}`, arguments))
		if diff := cmp.Diff(want, verdict); diff != "" {
			t.Errorf("%s (-want +got):\n%s", city, diff)
		}
	}
}

// The tool does not care whether there is a session, nor an agent that drives its
// own which task it has before it answers.
func TestTheWeatherKeepsNoState(t *testing.T) {
	s := open(t, "weather")
	if status, answer, _ := s.post(s.resources+"/get_weather", "", `{"city":"Oslo"}`); status != http.StatusOK {
		t.Errorf("a tool call without a session got %d %s", status, answer)
	}
	answer, cookie := s.must(s.resources+"/seed_session", "", `{}`)
	if answer != "{}" {
		t.Errorf("an agent-run seed got %s", answer)
	}
	s.resourcesJar = cookie
	task := weatherRow(`{"city":"Oslo"}`, `{}`)
	for range 2 {
		if verdict := s.verify(task, `{"output":[]}`); verdict["mask_sample"] != false {
			t.Errorf("the verify got %v", verdict)
		}
	}
}

func TestACityMayHaveACommaInItsName(t *testing.T) {
	s := open(t, "weather")
	task := weatherRow(`{"city":"Washington, D.C."}`, `{}`)
	s.seed("a", task)
	for city, reward := range map[string]float64{"washington, d.c.": 1, "Washington": 0} {
		arguments := fmt.Sprintf(`{"city":%q}`, city)
		verdict := s.verify(task, fmt.Sprintf(`{"output":[{"type":"function_call","name":"get_weather","arguments":%q}]}`, arguments))
		if verdict["reward"] != reward {
			t.Errorf("%s: the reward is %v, want %v", city, verdict["reward"], reward)
		}
	}
}

func TestAnAnswerWithoutItsCityCannotBeScored(t *testing.T) {
	s := open(t, "weather")
	s.seed("a", weatherRow(`{"city":"Oslo"}`, `{}`))
	status, answer, _ := s.post(s.resources+"/verify", s.resourcesJar, `{"responses_create_params":{},"response":{"output":[]}}`)
	if want := `{"detail":[{"type":"missing","loc":["body","city"],"msg":"Field required"}]}`; status != 422 || answer != want {
		t.Errorf("got %d %s, want 422 %s", status, answer, want)
	}
}

// What the scripted model says, for questions of every kind that the dataset has.
func TestTheWeatherScript(t *testing.T) {
	const tools = `[{"type":"function","name":"get_weather"}]`
	for _, test := range []struct{ name, question, tools, lookedUp, said string }{
		{"a city", "How warm is it in Oslo today?", tools, "Oslo", "The weather in Oslo is clear at 4 °C."},
		{"a city of two words", "What should I pack for New York this weekend?", tools, "New York", "The weather in New York is cloudy at -4 °C."},
		{"two cities", "I live in Bergen, but how is it in Oslo?", tools, "Bergen", "The weather in Bergen is clear at 25 °C."},
		{"no city", "whats the weather in vienna", tools, "", "Which city do you mean?"},
		{"no tools wanted", "Don't use any tools: is it raining in Rome?", tools, "", "Without looking it up, I would guess that it is mild in Rome."},
		{"no tools there", "Is it raining in Rome?", `[]`, "", "Without looking it up, I would guess that it is mild in Rome."},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, "weather")
			_, body := s.play("a", weatherRow(`{"city":"Oslo"}`, fmt.Sprintf(`{"input":%q,"tools":%s}`, test.question, test.tools)))
			var response struct {
				Model  string
				Output []struct {
					Type, Arguments string
					Content         []struct{ Text string }
				}
			}
			if err := json.Unmarshal([]byte(body), &response); err != nil {
				t.Fatal(err)
			}
			var lookedUp struct{ City string }
			said := ""
			for _, item := range response.Output {
				switch item.Type {
				case "function_call":
					if err := json.Unmarshal([]byte(item.Arguments), &lookedUp); err != nil {
						t.Fatal(err)
					}
				case "message":
					said += item.Content[0].Text
				}
			}
			if lookedUp.City != test.lookedUp || said != test.said {
				t.Errorf("it looked up %q and said %q, want %q and %q", lookedUp.City, said, test.lookedUp, test.said)
			}
		})
	}
}

// The dataset holds tasks that the script solves and tasks that defeat it, so
// that a run's mean is neither 0 nor 1.
func TestTheWeatherDataset(t *testing.T) {
	lines := dataset(t, "weather")
	var unsolved []string
	s := open(t, "weather")
	for i, task := range lines {
		if want := fmt.Sprintf(`{"taskset":"weather","task_id":"weather-%d"}`, i); string(task.TaskID) != want {
			t.Errorf("row %d is called %s", i, task.TaskID)
		}
		verdict, _ := s.play(fmt.Sprint("session-", i), task)
		if verdict["reward"] == 0.0 {
			unsolved = append(unsolved, fmt.Sprint(i, " ", verdict["city"]))
		}
	}
	want := []string{"2 Tromsø", "5 Oslo", "7 Rome", "10 Rio de Janeiro", "13 Madrid", "16 Venice", "19 Vienna"}
	if diff := cmp.Diff(want, unsolved); diff != "" || len(lines) != 20 {
		t.Errorf("of %d tasks, unsolved (-want +got):\n%s", len(lines), diff)
	}
	if open := s.environment.Resources.Open() + s.environment.Agent.Open(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// The small dataset has a task of each outcome: solved, not solved, masked.
func TestTheWeatherDatasetWithASilentStation(t *testing.T) {
	s := open(t, "weather")
	var got []string
	for i, task := range dataset(t, "weather-outage") {
		verdict, _ := s.play(fmt.Sprint("session-", i), task)
		got = append(got, fmt.Sprint(verdict["city"], " ", verdict["reward"], " ", verdict["mask_sample"]))
	}
	want := []string{"Tromsø 1 false", "Longyearbyen 0 true", "Hammerfest 0 false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// The tools that the datasets offer are those that there are.
func TestTheDatasetsOfferTheToolsThatThereAre(t *testing.T) {
	for _, name := range []string{"weather", "weather-outage"} {
		for i, task := range dataset(t, name) {
			if offered := string(task.TaskInput.Params); strings.Contains(offered, `"tools"`) && !strings.Contains(offered, string(environments.GetWeatherParameters)) {
				t.Errorf("%s, row %d offers other parameters than the tool has: %s", name, i, offered)
			}
		}
	}
}

func dataset(t *testing.T, name string) []row {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for line := range bytes.Lines(text) {
		var task row
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&task); err != nil {
			t.Fatalf("line %d: %v", len(rows)+1, err)
		}
		rows = append(rows, task)
	}
	return rows
}
