//go:build unix

package examples_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// An object is one of Kubernetes, as it is written.
type object struct {
	file   string
	fields any
}

// readObjects reads the objects of a file by their kinds, of which each is there once.
// A name without a folder is of the example.
func readObjects(t *testing.T, name string) map[string]object {
	t.Helper()
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join("kubernetes", name)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	objects := map[string]object{}
	in := yaml.NewDecoder(file)
	for {
		o := object{file: name}
		if err := in.Decode(&o.fields); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		objects[o.text(t, "kind")] = o
	}
}

// at is what stands at a path such as spec.containers.0.image; nil: nothing.
func (o object) at(path string) any {
	value := o.fields
	for name := range strings.SplitSeq(path, ".") {
		switch inner := value.(type) {
		case map[string]any:
			value = inner[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(inner) {
				return nil
			}
			value = inner[i]
		default:
			return nil
		}
	}
	return value
}

func (o object) text(t *testing.T, path string) string {
	t.Helper()
	text, ok := o.at(path).(string)
	if !ok {
		t.Fatalf("%s: no text at %s", o.file, path)
	}
	return text
}

func (o object) texts(path string) []string {
	var texts []string
	list, _ := o.at(path).([]any)
	for _, element := range list {
		texts = append(texts, fmt.Sprint(element))
	}
	return texts
}

func (o object) want(t *testing.T, want map[string]any) {
	t.Helper()
	for path, value := range want {
		if diff := cmp.Diff(value, o.at(path)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", o.file, path, diff)
		}
	}
}

// afterExit is what a Job does about a pod whose container ended with a status.
func (o object) afterExit(status int) string {
	rules, _ := o.at("spec.podFailurePolicy.rules").([]any)
	for i, rule := range rules {
		at := fmt.Sprintf("spec.podFailurePolicy.rules.%d.onExitCodes.", i)
		if o.at(at+"operator") == "In" && slices.Contains(o.texts(at+"values"), fmt.Sprint(status)) {
			return fmt.Sprint(rule.(map[string]any)["action"])
		}
	}
	return "Count"
}

// A cluster runs the containers of the examples, with a folder for their volume.
type cluster struct {
	job, aggregate object
	shards         int
	folder         string
	servers        *servers
	settings       map[string]string // of the ConfigMap, as this machine has them
}

const mount = "/data"

func deploy(t *testing.T, furtherRows ...string) *cluster {
	t.Helper()
	objects := readObjects(t, "job.yaml")
	c := &cluster{
		job:       objects["Job"],
		aggregate: readObjects(t, "aggregate.yaml")["Job"],
		folder:    t.TempDir(),
		servers:   serve(t),
		settings:  map[string]string{},
	}
	c.shards, _ = c.job.at("spec.completions").(int)
	settings, _ := objects["ConfigMap"].at("data").(map[string]any)
	for name, value := range settings {
		text, ok := value.(string)
		if !ok {
			t.Errorf("%s is no string, which Kubernetes refuses", name)
		}
		c.settings[name] = c.here(text)
	}
	c.settings["TURN_RESOURCES"], c.settings["TURN_AGENT"] = c.servers.resources, c.servers.agent
	c.settings["TURN_REPEATS"] = fmt.Sprint(repeats)
	copyDataset(t, filepath.Join(c.folder, "tasks.jsonl"), furtherRows...)
	return c
}

// here is a path on the volume as this machine has it.
func (c *cluster) here(path string) string {
	if rest, ok := strings.CutPrefix(path, mount+"/"); ok {
		return filepath.Join(c.folder, rest)
	}
	return path
}

// run starts the container of a Job's pod.
func (c *cluster) run(t *testing.T, o object, env map[string]string) *job {
	t.Helper()
	const at = "spec.template.spec.containers.0."
	words := append(o.texts(at+"command"), o.texts(at+"args")...)
	for i := range words {
		words[i] = c.here(words[i])
	}
	all := maps.Clone(c.settings)
	maps.Copy(all, env)
	return start(t, t.TempDir(), all, filepath.Join(programs, words[0]), words[1:]...)
}

// shard starts the pod of an index.
func (c *cluster) shard(t *testing.T, index int) *job {
	t.Helper()
	return c.run(t, c.job, map[string]string{"JOB_COMPLETION_INDEX": fmt.Sprint(index)})
}

func (c *cluster) join(t *testing.T) *job {
	t.Helper()
	return c.run(t, c.aggregate, nil)
}

func (c *cluster) output() string { return c.settings["TURN_OUTPUT"] }

func TestKubernetesShardsAtOnce(t *testing.T) {
	t.Parallel()
	c := deploy(t)
	var jobs []*job
	for index := range c.shards {
		jobs = append(jobs, c.shard(t, index))
	}
	for _, j := range jobs {
		j.wantStatus(t, 0)
	}
	c.join(t).wantStatus(t, 0)
	wantEachOnce(t, c.output(), repeats)
	if got := c.servers.answered(); got != tasks*repeats {
		t.Errorf("the agent answered %d times, want %d", got, tasks*repeats)
	}
}

// A pod that is evicted in the middle of an episode, or killed, is replaced by one
// that goes on.
func TestKubernetesEviction(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		end    func(*job, *testing.T)
		status int
		action string
	}{
		{"evicted", (*job).terminate, 143, "Ignore"},
		{"out of memory", (*job).kill, 137, "Count"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := deploy(t)
			c.servers.leaks = test.status == 137
			c.settings["TURN_CONCURRENCY"], c.settings["TURN_GRACE"] = "1", "10ms"
			reached, release := c.servers.holdAfter(2)
			ended := c.shard(t, 1)
			await(t, reached, "the episode that is cut off")
			test.end(ended, t)
			ended.wantStatus(t, test.status)
			release()
			wantAction(t, c.job, test.status, test.action)
			file := shardFile(c.output(), 2, c.shards)
			before, err := os.ReadFile(file)
			if got := strings.Count(string(before), "\n"); err != nil || got != 2 {
				t.Fatalf("%d results are on disk (%v), want 2", got, err)
			}
			for index := range c.shards {
				c.shard(t, index).wantStatus(t, 0)
			}
			wantPrefix(t, file, before)
			c.join(t).wantStatus(t, 0)
			wantEachOnce(t, c.output(), repeats)
		})
	}
}

func wantAction(t *testing.T, o object, status int, want string) {
	t.Helper()
	if got := o.afterExit(status); got != want {
		t.Errorf("%s: after exit status %d the Job's action is %s, want %s", o.file, status, got, want)
	}
}

// A shard with failed rollouts has ended; the Job that joins them tells, and is not
// tried again in vain.
func TestKubernetesFailedRollouts(t *testing.T) {
	t.Parallel()
	c := deploy(t, `{"task_id":{"taskset":"weather","task_id":"nowhere"},"task_input":{"responses_create_params":{"input":"?"},"task_data":{}}}`)
	for index := range c.shards {
		c.shard(t, index).wantStatus(t, 0)
	}
	for range 2 { // it may be run again
		c.join(t).wantStatus(t, 3)
		wantEachOnce(t, c.output(), repeats)
	}
	wantAction(t, c.aggregate, 3, "FailJob")
}

// A mistake ends the whole Job: no pod does better.
func TestKubernetesMistakes(t *testing.T) {
	t.Parallel()
	c := deploy(t, `{"no":"row"}`)
	c.shard(t, 0).wantStatus(t, 2)
	c.join(t).wantStatus(t, 2)
	for _, o := range []object{c.job, c.aggregate} {
		wantAction(t, o, 2, "FailJob")
	}
}

func TestKubernetesJob(t *testing.T) {
	objects := readObjects(t, "job.yaml")
	o, settings := objects["Job"], objects["ConfigMap"]
	shards := o.at("spec.completions")
	o.want(t, map[string]any{
		"spec.completionMode":                                  "Indexed",
		"spec.parallelism":                                     shards,
		"spec.podReplacementPolicy":                            "Failed",
		"spec.template.spec.restartPolicy":                     "Never", // Kubernetes refuses another with what follows
		"spec.backoffLimitPerIndex":                            5,
		"spec.podFailurePolicy.rules.2.action":                 "Ignore",
		"spec.podFailurePolicy.rules.2.onPodConditions.0.type": "DisruptionTarget",
	})
	if got, want := settings.text(t, "data.TURN_SHARD"), fmt.Sprintf("auto/%v", shards); got != want {
		t.Errorf("TURN_SHARD is %s, want %s: there are as many pods", got, want)
	}
	least := secondsOf(t, settings.at("data.TURN_GRACE")) + 2*secondsOf(t, settings.at("data.TURN_CLEANUP_TIMEOUT"))
	if got, _ := o.at("spec.template.spec.terminationGracePeriodSeconds").(int); got <= least {
		t.Errorf("a pod has %d s to end, and turn takes up to %d s", got, least)
	}
}

// Each pod is one that a cluster with the restricted pod security standard admits,
// and each that uses the volume may read what the others wrote.
func TestKubernetesPods(t *testing.T) {
	claim := readObjects(t, "volume.yaml")["PersistentVolumeClaim"]
	claim.want(t, map[string]any{"spec.accessModes": []any{"ReadWriteMany"}})
	settings := readObjects(t, "job.yaml")["ConfigMap"]
	for _, test := range []struct {
		file, kind, pod string
		turn, volume    bool
	}{
		{"job.yaml", "Job", "spec.template.spec.", true, true},
		{"aggregate.yaml", "Job", "spec.template.spec.", true, true},
		{"servers.yaml", "Deployment", "spec.template.spec.", true, false},
		{"volume.yaml", "Pod", "spec.", false, true},
	} {
		o := readObjects(t, test.file)[test.kind]
		want := map[string]any{
			"automountServiceAccountToken":                          false,
			"securityContext.runAsNonRoot":                          true,
			"securityContext.runAsUser":                             65532,
			"securityContext.seccompProfile.type":                   "RuntimeDefault",
			"containers.0.securityContext.allowPrivilegeEscalation": false,
			"containers.0.securityContext.capabilities.drop":        []any{"ALL"},
			"containers.1": nil,
		}
		if test.turn {
			want["enableServiceLinks"] = false
			want["containers.0.image"] = "registry.example.com/turn:latest"
			want["containers.0.command"] = []any{"turn"}
			want["containers.0.securityContext.readOnlyRootFilesystem"] = true
		}
		if test.volume {
			want["securityContext.fsGroup"] = 65532
			want["volumes.0.persistentVolumeClaim.claimName"] = claim.at("metadata.name")
			want["containers.0.volumeMounts.0.name"] = o.at(test.pod + "volumes.0.name")
			want["containers.0.volumeMounts.0.mountPath"] = mount
		}
		if test.turn && test.volume {
			want["containers.0.envFrom.0.configMapRef.name"] = settings.at("metadata.name")
		}
		placed := map[string]any{}
		for path, value := range want {
			placed[test.pod+path] = value
		}
		o.want(t, placed)
	}
}

// The servers are where the settings say.
func TestKubernetesServices(t *testing.T) {
	settings := readObjects(t, "job.yaml")["ConfigMap"]
	objects := readObjects(t, "servers.yaml")
	service, deployment := objects["Service"], objects["Deployment"]
	deployment.want(t, map[string]any{
		"spec.template.metadata.labels": service.at("spec.selector"),
		"spec.selector.matchLabels":     service.at("spec.selector"),
		"spec.replicas":                 1,
	})
	args := deployment.texts("spec.template.spec.containers.0.args")
	for i, name := range []string{"RESOURCES", "AGENT"} {
		server, err := url.Parse(settings.text(t, "data.TURN_"+name))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := server.Host, fmt.Sprintf("%v:%v", service.at("metadata.name"), service.at(fmt.Sprintf("spec.ports.%d.port", i))); got != want {
			t.Errorf("TURN_%s is of %s, and the Service is %s", name, got, want)
		}
		if want := fmt.Sprintf("--%s-listen=:%s", strings.ToLower(name), server.Port()); !slices.Contains(args, want) {
			t.Errorf("the servers do not get %s: %v", want, args)
		}
	}
}

// The variant of README.md with a volume a shard is made as it says there.
func TestKubernetesVolumeAShard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("kubernetes", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, behind, _ := strings.Cut(string(text), "```sh\nfor ")
	loop, _, found := strings.Cut(behind, "```")
	if !found {
		t.Fatal("README.md has no loop over the shards")
	}
	folder := t.TempDir()
	for _, name := range []string{"job.yaml", "volume.yaml"} {
		text, err := os.ReadFile(filepath.Join("kubernetes", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	start(t, folder, nil, "bash", "-euc", "for "+loop).wantStatus(t, 0)
	for i := 1; i <= 4; i++ {
		objects := readObjects(t, filepath.Join(folder, fmt.Sprintf("shard-%d.yaml", i)))
		for _, name := range []struct{ kind, want string }{
			{"ConfigMap", "turn"}, {"Job", "turn-run"}, {"PersistentVolumeClaim", "turn-data"}, {"Pod", "turn-files"},
		} {
			objects[name.kind].want(t, map[string]any{"metadata.name": fmt.Sprintf("%s-%d", name.want, i)})
		}
		objects["ConfigMap"].want(t, map[string]any{"data.TURN_SHARD": fmt.Sprintf("%d/4", i)})
		objects["PersistentVolumeClaim"].want(t, map[string]any{"spec.accessModes": []any{"ReadWriteOnce"}})
		objects["Pod"].want(t, map[string]any{"spec.volumes.0.persistentVolumeClaim.claimName": fmt.Sprintf("turn-data-%d", i)})
		objects["Job"].want(t, map[string]any{
			"spec.completions": 1,
			"spec.parallelism": 1,
			"spec.template.spec.containers.0.envFrom.0.configMapRef.name":  fmt.Sprintf("turn-%d", i),
			"spec.template.spec.volumes.0.persistentVolumeClaim.claimName": fmt.Sprintf("turn-data-%d", i),
		})
	}
}
