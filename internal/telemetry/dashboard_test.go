package telemetry_test

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/telemetry"
	"example.com/turn/observe"
)

// labelsOf are the metrics of turn that a scrape has when all has happened once, with
// their labels; a histogram has those of its series.
func labelsOf(t *testing.T) map[string][]string {
	t.Helper()
	m := telemetry.New()
	m.Began()
	m.Received(1)
	m.Sent(1)
	m.Redispatched()
	m.Journal(func() (int, int) { return 2, 1 })
	m.Waits()()
	m.CloseFailed(episode.AgentServer)
	_, ended := m.Attempt(t.Context(), nil)
	ended(episode.Reply{Failure: failures.New(failures.StageSeed, failures.VerifierError, "no")})
	_, called := m.Call(t.Context(), observe.Call{What: "POST /verify"})
	called(observe.Called{Err: errors.New("no")})

	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(recorder.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for name, family := range families {
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		if family.GetMetric()[0].GetHistogram() == nil {
			found[name] = labels
			continue
		}
		found[name+"_bucket"], found[name+"_count"], found[name+"_sum"] = append(labels, "le"), labels, labels
	}
	return found
}

// metricOf is the metric that a series is of.
func metricOf(series string) string {
	return regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(series, "")
}

// Every query of the dashboard is of metrics that there are, by labels that they have, and
// every metric of turn's own is shown.
func TestTheDashboardShowsWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("../../examples/grafana/turn.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	there, shown := labelsOf(t), map[string]bool{}
	metric, by, legend := regexp.MustCompile(`\b(?:turn|process)_[a-z_]+`), regexp.MustCompile(`by \(([^)]*)\)`), regexp.MustCompile(`{{([a-z]+)}}`)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			grouped := []string{}
			for _, group := range by.FindAllStringSubmatch(target.Expr, -1) {
				grouped = append(grouped, strings.Split(group[1], ", ")...)
			}
			for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(grouped, label[1]) {
					t.Errorf("%s: the legend has %s, the query does not", panel.Title, label[1])
				}
			}
			for _, name := range metric.FindAllString(target.Expr, -1) {
				labels, known := there[name]
				if !known {
					t.Errorf("%s: there is no metric %s", panel.Title, name)
				}
				for _, label := range grouped {
					if label != "instance" && !slices.Contains(labels, label) { // which is the scraper's
						t.Errorf("%s: %s has no label %s", panel.Title, name, label)
					}
				}
				shown[metricOf(name)] = true
			}
		}
	}
	for name := range there {
		name = metricOf(name)
		if strings.HasPrefix(name, "turn_") && !shown[name] {
			t.Errorf("%s is not shown", name)
		}
	}
}

// docs/operating.md has each metric of turn's own, and no other.
func TestEveryMetricIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for name := range labelsOf(t) {
		if strings.HasPrefix(name, "turn_") {
			there[metricOf(name)] = true
		}
	}
	said := map[string]bool{}
	for _, name := range regexp.MustCompile(`\bturn_[a-z_]+[a-z]`).FindAllString(string(text), -1) {
		said[name] = true
		if !there[name] {
			t.Errorf("there is no metric %s", name)
		}
	}
	for name := range there {
		if !said[name] {
			t.Errorf("%s is not documented", name)
		}
	}
}
