package agentserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/turn/failures"
	"example.com/turn/servers/internal/jsonapi"
	"example.com/turn/servers/requests"
)

// observations are what a session's close reports of its turns, in the form of
// NeMo Gym's AgentObservationBundle. Its readers refuse members that they do not
// know.
type observations struct {
	records []any
}

type invocationRecord struct {
	Kind         string  `json:"kind"`
	InvocationID string  `json:"invocation_id"`
	Status       string  `json:"status"`
	DurationMS   float64 `json:"duration_ms"`
	ErrorType    string  `json:"error_type,omitempty"`
}

type toolCallRecord struct {
	Kind         string  `json:"kind"`
	InvocationID string  `json:"invocation_id"`
	ToolCallID   string  `json:"tool_call_id"`
	ToolName     string  `json:"tool_name"`
	StartedAt    float64 `json:"started_at"` // seconds since 1970
	CompletedAt  float64 `json:"completed_at"`
	DurationMS   float64 `json:"duration_ms"`
	TimingSource string  `json:"timing_source"`
	Status       string  `json:"status"`
	ErrorType    string  `json:"error_type,omitempty"`
}

// invocationID names the n-th turn of a session.
func invocationID(n int) string {
	if n == 1 {
		return "root"
	}
	return fmt.Sprintf("activation-%d", n)
}

func (o *observations) invocation(id, status string, took time.Duration, err error) {
	o.records = append(o.records, invocationRecord{
		Kind: "agent_invocation", InvocationID: id, Status: status,
		DurationMS: milliseconds(took), ErrorType: errorType(err),
	})
}

func (o *observations) toolCall(invocation string, call functionCall, output toolOutput, began, ended time.Time, err error) {
	record := toolCallRecord{
		Kind: "tool_call", InvocationID: invocation, ToolCallID: call.id, ToolName: call.name,
		StartedAt: seconds(began), CompletedAt: max(seconds(began), seconds(ended)), DurationMS: milliseconds(ended.Sub(began)),
		TimingSource: "executor", Status: "completed", ErrorType: errorType(err),
	}
	switch {
	case isCancelled(err):
		record.Status = "cancelled"
	case err != nil:
		record.Status = "failed"
	case output.problem != "":
		record.Status, record.ErrorType = "failed", output.problem
	}
	o.records = append(o.records, record)
}

// appendJSON appends the bundle, or null when there was nothing to observe.
func (o *observations) appendJSON(dst []byte, source string) []byte {
	if len(o.records) == 0 {
		return append(dst, "null"...)
	}
	bundle, err := jsonapi.Marshal(struct {
		Source  string `json:"source"`
		Records []any  `json:"records"`
		Gaps    []any  `json:"gaps"`
	}{source, o.records, []any{}})
	if err != nil {
		return append(dst, "null"...) // numbers and texts always encode
	}
	return append(dst, bundle...)
}

// errorType is a name for an error that is safe to group by.
func errorType(err error) string {
	var refusal *requests.Refusal
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refusal) && refusal.Kind != "":
		return string(refusal.Kind)
	case isCancelled(err):
		return string(failures.Cancelled)
	}
	return string(failures.AgentRunError)
}

func isCancelled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, errClosedMeanwhile)
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func milliseconds(d time.Duration) float64 { return float64(max(d, 0).Microseconds()) / 1e3 }
