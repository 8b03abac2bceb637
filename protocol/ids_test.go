package protocol_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

func TestCaptureKey(t *testing.T) {
	for _, test := range []struct {
		id   protocol.EpisodeID
		want string
	}{
		{protocol.EpisodeID{RolloutID: "r"}, "r"},
		{protocol.EpisodeID{RolloutID: "r", Attempt: 1}, "r-a1"},
		{protocol.EpisodeID{RolloutID: "r-a0", Attempt: 12}, "r-a0-a12"},
		{protocol.EpisodeID{RolloutID: "r", Attempt: protocol.MaxAttempt}, "r-a4611686018427387904"},
	} {
		if got := test.id.CaptureKey(); got != test.want {
			t.Errorf("the capture key of %+v is %s, want %s", test.id, got, test.want)
		}
	}
}

func TestIDsAsJSON(t *testing.T) {
	for _, test := range []struct {
		id interface {
			AppendJSON([]byte) []byte
			String() string
		}
		json, text string
	}{
		{protocol.EpisodeID{RolloutID: "7-0", Attempt: 2}, `{"rollout_id":"7-0","attempt":2}`, "7-0-a2"},
		{protocol.EpisodeID{RolloutID: "7-0", Attempt: 12}, `{"rollout_id":"7-0","attempt":12}`, "7-0-a12"},
		{protocol.TaskID{Taskset: "weather", TaskID: `Tromsø "<1>"`}, `{"taskset":"weather","task_id":"Tromsø \"<1>\""}`, `weather/Tromsø "<1>"`},
	} {
		if got := string(test.id.AppendJSON([]byte("["))); got != "["+test.json {
			t.Errorf("AppendJSON gives %s, want [%s", got, test.json)
		}
		if test.id.String() != test.text {
			t.Errorf("String gives %s, want %s", test.id, test.text)
		}
	}
	// The struct tags say the same to encoding/json.
	id := protocol.EpisodeID{RolloutID: "7-0", Attempt: 2}
	if marshalled, err := json.Marshal(id); err != nil || string(marshalled) != string(id.AppendJSON(nil)) {
		t.Errorf("json.Marshal gives %s, %v, want %s", marshalled, err, id.AppendJSON(nil))
	}
}

func TestCheckRolloutID(t *testing.T) {
	const (
		fine     = ""
		pattern  = "must begin with a letter or digit and hold only letters, digits, '.', '_' and '-'"
		reserved = "must not end in -a<N>, which names an attempt"
	)
	for _, test := range []struct{ id, want string }{
		{"a", fine},
		{"0", fine},
		{"7-0", fine},
		{"Task_1.run-2", fine},
		{"a-", fine},
		{"", pattern},
		{"-a", pattern},
		{".a", pattern},
		{"_a", pattern},
		{"a b", pattern},
		{" a", pattern},
		{"a\n", pattern},
		{"a\x00", pattern},
		{"a/b", pattern},
		{"a%2f", pattern},
		{"Tromsø", pattern},
		{"\u0661", pattern}, // a digit, not of ASCII
		{"a\xff", pattern},

		{"x-a1", reserved},
		{"x-a12", reserved},
		{"x-a10", reserved},
		{"x-a01", reserved}, // 1, however it is spelled
		{"x-a1-a2", reserved},
		{"x-a99999999999999999999999", reserved},
		{"x-a0", fine},
		{"x-a00", fine},
		{"x-a", fine},
		{"x-A1", fine},
		{"xa1", fine},
		{"a1", fine},
		{"x-b1", fine},
		{"x-a1b", fine},
		{"x-a1.", fine},
		{"x-a1-", fine},
		{"x-a-1", fine},
		{"x-a1\n", pattern},
	} {
		got := fine
		if err := protocol.CheckRolloutID(test.id); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("CheckRolloutID(%q) says %q, want %q", test.id, got, test.want)
		}
	}
}

func FuzzCheckRolloutID(f *testing.F) {
	for _, id := range []string{"", "a", "a-a1", "a-a0", "a-a01", "-", "a\n", "é", "a-a\x30", "a-a1-a0", "zZ9", "a-aX", "a-a1X", "a/", "a:", "a@", "a[", "a`", "a{"} {
		f.Add(id)
	}
	name := regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]*\z`)
	attempt := regexp.MustCompile(`-a0*[1-9][0-9]*\z`)
	f.Fuzz(func(t *testing.T, id string) {
		if got, want := protocol.CheckName(id) == nil, name.MatchString(id); got != want {
			t.Fatalf("CheckName(%q) accepts: %v, want %v", id, got, want)
		}
		if got, want := protocol.CheckRolloutID(id) == nil, name.MatchString(id) && !attempt.MatchString(id); got != want {
			t.Fatalf("CheckRolloutID(%q) accepts: %v, want %v", id, got, want)
		}
	})
}

func TestSessionIDsAreFresh(t *testing.T) {
	for prefix, fresh := range map[string]func() string{
		"resources-session": protocol.NewResourcesSessionID,
		"agent-session":     protocol.NewAgentSessionID,
	} {
		form := regexp.MustCompile(`\A` + prefix + `-[0-9a-f]{32}\z`)
		seen := map[string]bool{}
		for range 1000 {
			id := fresh()
			if !form.MatchString(id) || seen[id] {
				t.Fatalf("%q is not a fresh id of the form %s (seen before: %v)", id, form, seen[id])
			}
			seen[id] = true
		}
	}
}

func TestCheckEcho(t *testing.T) {
	for _, test := range []struct{ name, reply, want string }{
		{"the same", `{"agent_session_id":"s-1","more":0}`, ""},
		{"the same, spelled otherwise", `{"agent_session_id":"\u0073-1"}`, ""},
		{"absent", `{"session_id":"s-1"}`, "it lacks agent_session_id"},
		{"another case", `{"Agent_Session_Id":"s-1"}`, "it lacks agent_session_id"},
		{"another", `{"agent_session_id":"s-2"}`, "agent_session_id is not the s-1 that was sent"},
		{"longer", `{"agent_session_id":"s-1 "}`, "agent_session_id is not the s-1 that was sent"},
		{"null", `{"agent_session_id":null}`, "agent_session_id is not the s-1 that was sent"},
		{"no text", `{"agent_session_id":["s-1"]}`, "agent_session_id is not the s-1 that was sent"},
		{"another at last", `{"agent_session_id":"s-1","agent_session_id":"s-2"}`, "agent_session_id is not the s-1 that was sent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			reply, err := rawjson.ParseObject([]byte(test.reply))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, protocol.CheckEcho(reply, "agent_session_id", "s-1")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{protocol.RolloutPath("7-0-a1", protocol.PathVerify), "/ng-rollout/7-0-a1/verify"},
		{protocol.ResponsesPath("7-0", false), "/ng-rollout/7-0/v1/responses"},
		{protocol.ResponsesPath("7-0", true), "/ng-rollout/7-0/training-token-capture/v1/responses"},
	} {
		if test.got != test.want {
			t.Errorf("the path is %s, want %s", test.got, test.want)
		}
	}
}

func ExampleEpisodeID_CaptureKey() {
	fmt.Println(protocol.EpisodeID{RolloutID: "task7-0"}.CaptureKey())
	fmt.Println(protocol.EpisodeID{RolloutID: "task7-0", Attempt: 2}.CaptureKey())
	// Output:
	// task7-0
	// task7-0-a2
}

func ExampleCheckRolloutID() {
	fmt.Println(protocol.CheckRolloutID("task7-0"))
	fmt.Println(protocol.CheckRolloutID("task7-0-a2"))
	// Output:
	// <nil>
	// must not end in -a<N>, which names an attempt
}
