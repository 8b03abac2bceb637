package episode_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
)

// benchSizes are those of the values that an episode carries: few hundred bytes, and as
// long as the answers with token ids of many turns are.
var benchSizes = []struct {
	name  string
	bytes int
}{{"5MB", 5 << 20}, {"600B", 600}}

// benchValue is an object of that size, with a text and numbers in it.
func benchValue(size int) string {
	var b strings.Builder
	b.WriteString(`{"output":[{"type":"message","content":[{"type":"output_text","text":"`)
	for i := 0; b.Len() < size/2; i++ {
		fmt.Fprintf(&b, `%d. It is %d °C in Tromsø, \"clear sky\".\n`, i, i%30)
	}
	b.WriteString(`"}]}],"token_ids":[0`)
	for i := uint64(1); b.Len() < size; i++ {
		b.WriteString(", ")
		b.WriteString(strconv.FormatUint(i*2654435761%150_000, 10))
	}
	b.WriteString(`]}`)
	return b.String()
}

// benchRequest is the body of POST /run with an input of that size.
func benchRequest(params string) string {
	return `{"episode_id":{"rollout_id":"7-0","attempt":0},"task":{"task_id":{"taskset":"weather","task_id":"t-7"},"task_input":` + benchInput(params) + `}}`
}

func benchInput(params string) string {
	return `{"responses_create_params":` + params + `,"task_data":` + benchTaskData + `,"agent_timeout_seconds":600}`
}

const benchTaskData = `{"city":"Oslo","expected":{"celsius":12.5},"tags":["a","b"],"seed":18446744073709551616}`

// benchResult is a verdict about a response, as both a verifier and an environment
// server write it.
func benchResult(params, response string) string {
	return `{"city":"Oslo","expected":{"celsius":12.5},"responses_create_params":` + params + `,"response":` + response + `,"reward":0.50,"mask_sample":false,"ng_agent_observations":null}`
}

// benchReturned is [benchResult] without the observations, which are not the verifier's
// to write.
func benchReturned(params, response string) string {
	return strings.Replace(benchResult(params, response), `,"ng_agent_observations":null`, "", 1)
}

// benchFailure is the rest of a reply that has a response and no result.
func benchFailure(response string) string {
	return `"result":null,"failure":{"failure_reason":"boom","terminal":false,"partial_response":` + response +
		`,"failure_kind":"verifier_error","stage":"verification"}`
}

// mustBe fails a benchmark that would measure something else.
func mustBe(b *testing.B, what, got, want string) {
	b.Helper()
	if got != want {
		b.Fatalf("%s: %d bytes, want %d: %s", what, len(got), len(want), cmp.Diff(fmt.Sprintf("%.300s", want), fmt.Sprintf("%.300s", got)))
	}
	if !json.Valid([]byte(got)) {
		b.Fatalf("%s is not JSON", what)
	}
}

func benchParsed(b *testing.B, body string) *episode.Request {
	b.Helper()
	request, err := episode.ParseRequest([]byte(body))
	if err != nil {
		b.Fatal(err)
	}
	return request
}

func BenchmarkParseRequest(b *testing.B) {
	for _, size := range benchSizes {
		params := benchValue(size.bytes)
		body := []byte(benchRequest(params))
		b.Run(size.name, func(b *testing.B) {
			request := benchParsed(b, string(body))
			mustBe(b, "the params", string(request.Params), params)
			mustBe(b, "the task data", string(request.TaskData), benchTaskData)
			if request.EpisodeID != newRequest().EpisodeID || request.TaskID != newRequest().TaskID || request.AgentTimeout != 10*time.Minute {
				b.Fatalf("the request is %v of %v in %s", request.EpisodeID, request.TaskID, request.AgentTimeout)
			}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := episode.ParseRequest(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBodies puts together what is sent, around values that are not copied: a large
// one costs no more than a small one.
func BenchmarkBodies(b *testing.B) {
	for _, size := range benchSizes {
		value := benchValue(size.bytes)
		params := `{"input":"how warm is it in Oslo?"}`
		asked := benchParsed(b, benchRequest(value))
		small := benchParsed(b, benchRequest(params))
		response := []byte(value)
		result, _, err := episode.ReadVerdict([]byte(benchResult(params, value)))
		if err != nil {
			b.Fatal(err)
		}
		done := episode.Reply{EpisodeID: asked.EpisodeID, TaskID: asked.TaskID, Result: result}
		failure := failures.New(failures.StageVerification, failures.VerifierError, "boom")
		failure.PartialResponse = response
		failed := episode.Reply{EpisodeID: asked.EpisodeID, TaskID: asked.TaskID, Failure: failure}
		for _, test := range []struct {
			name string
			body func() episode.Body
			want string
		}{
			{"RunBody", asked.RunBody, benchRequest(value)},
			{
				"the body of verify", func() episode.Body { return episode.VerifyBody(small, response) },
				strings.TrimSuffix(benchTaskData, "}") + `,"responses_create_params":` + params + `,"response":` + value + `}`,
			},
			{"a reply with a result", func() episode.Body { return done.Body(nil) }, replyTo(`"result":` + benchReturned(params, value) + `,"failure":null`)},
			{"a reply with a failure", func() episode.Body { return failed.Body(nil) }, replyTo(benchFailure(value))},
		} {
			b.Run(test.name+"/"+size.name, func(b *testing.B) {
				mustBe(b, "the body", string(test.body().Bytes()), test.want)
				b.ReportAllocs()
				for b.Loop() {
					test.body()
				}
			})
		}
	}
}

func BenchmarkReadVerdict(b *testing.B) {
	for _, size := range benchSizes {
		value := benchValue(size.bytes)
		body := []byte(benchResult(`{}`, value))
		b.Run(size.name, func(b *testing.B) {
			result, dropped, err := episode.ReadVerdict(body)
			if err != nil || len(dropped) != 0 || result.Reward != 0.5 {
				b.Fatalf("%+v, without %q, %v", result, dropped, err)
			}
			mustBe(b, "the response", string(result.Field("response")), value)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := episode.ReadVerdict(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseReply(b *testing.B) {
	request := newRequest()
	for _, size := range benchSizes {
		value := benchValue(size.bytes)
		for _, test := range []struct {
			name, body string
			response   func(episode.Reply) json.RawMessage
		}{
			{"a result", `"result":` + benchResult(`{}`, value) + `,"failure":null`, func(r episode.Reply) json.RawMessage { return r.Result.Field("response") }},
			{"a failure", benchFailure(value), func(r episode.Reply) json.RawMessage { return r.Failure.PartialResponse }},
		} {
			body := []byte(replyTo(test.body))
			b.Run(test.name+"/"+size.name, func(b *testing.B) {
				reply, err := episode.ParseReply(body, request)
				if err != nil {
					b.Fatal(err)
				}
				mustBe(b, "the response", string(test.response(reply)), value)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := episode.ParseReply(body, request); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkParseRow reads a line of a dataset, whose task data is put together of what
// stands beside the agent's input.
func BenchmarkParseRow(b *testing.B) {
	for _, size := range benchSizes {
		value := benchValue(size.bytes)
		line := []byte(`{"responses_create_params":` + value + `,"_ng_task_index":7,"_ng_rollout_index":0,` + strings.TrimPrefix(benchTaskData, "{"))
		b.Run(size.name, func(b *testing.B) {
			row, err := episode.ParseRow(line, episode.RowRules{Taskset: "weather"})
			if err != nil {
				b.Fatal(err)
			}
			mustBe(b, "the params", string(row.Request.Params), value)
			mustBe(b, "the task data", string(row.Request.TaskData), benchTaskData)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := episode.ParseRow(line, episode.RowRules{Taskset: "weather"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
