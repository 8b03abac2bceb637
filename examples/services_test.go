//go:build unix

package examples_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"example.com/turn/internal/testprogram"
)

// A service is turn serve as something starts it that watches over it.
type service struct {
	*job
	url string
	env map[string]string
}

// listening gives a service an address of its own and starts it.
func listening(t *testing.T, folder string, env map[string]string, program string, args ...string) *service {
	t.Helper()
	address := testprogram.FreeAddress(t).String()
	env["TURN_LISTEN"] = address // goes before a file of settings
	return &service{job: start(t, folder, env, program, args...), url: "http://" + address, env: env}
}

// wantReady waits for a probe to be content.
func (s *service) wantReady(t *testing.T, path string) {
	t.Helper()
	testprogram.AwaitStatus(t, s.url+path, http.StatusOK)
}

// wantWork has a dataset run through the service, which then ends as it is told to.
func (s *service) wantWork(t *testing.T) {
	t.Helper()
	folder := t.TempDir()
	output := filepath.Join(folder, "rollouts.jsonl")
	copyDataset(t, filepath.Join(folder, "tasks.jsonl"))
	start(t, folder, nil, filepath.Join(programs, "turn"), "run", "tasks.jsonl", "-o", output, "--environment", s.url, "--repeats", fmt.Sprint(repeats)).wantStatus(t, 0)
	wantEachOnce(t, output, repeats)
	s.terminate(t)
	s.wantStatus(t, 0)
}

// seconds is a time as systemd, Kubernetes or Go has it.
func seconds(t *testing.T, text string) time.Duration {
	t.Helper()
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(n) * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// wantTimeToEnd checks that a drain has the time that it may take: the grace, and then two
// closes.
func wantTimeToEnd(t *testing.T, given, before time.Duration, grace, cleanup string) {
	t.Helper()
	if most := before + seconds(t, grace) + 2*seconds(t, cleanup); given <= most {
		t.Errorf("it has %s to end, and takes up to %s", given, most)
	}
}

func TestKubernetesDeployment(t *testing.T) {
	t.Parallel()
	objects := readObjects(t, "serve.yaml")
	front, settings, o := objects["Service"], objects["ConfigMap"], objects["Deployment"]
	const container = "spec.template.spec.containers.0."
	o.want(t, map[string]any{
		"spec.template.metadata.labels":                      front.at("spec.selector"),
		"spec.selector.matchLabels":                          front.at("spec.selector"),
		"spec.template.spec.automountServiceAccountToken":    false,
		"spec.template.spec.enableServiceLinks":              false,
		"spec.template.spec.securityContext.runAsNonRoot":    true,
		container + "command":                                []any{"turn"},
		container + "envFrom.0.configMapRef.name":            settings.at("metadata.name"),
		container + "ports.0.name":                           front.at("spec.ports.0.name"),
		container + "ports.0.containerPort":                  front.at("spec.ports.0.port"),
		container + "readinessProbe.httpGet.port":            front.at("spec.ports.0.name"),
		container + "livenessProbe.httpGet.port":             front.at("spec.ports.0.name"),
		container + "securityContext.readOnlyRootFilesystem": true,
		container + "volumeMounts.0.mountPath":               settings.at("data.TURN_JOURNAL"),
		container + "volumeMounts.0.name":                    o.at("spec.template.spec.volumes.0.name"),
	})
	if got, want := settings.text(t, "data.TURN_LISTEN"), fmt.Sprintf(":%v", front.at("spec.ports.0.port")); got != want {
		t.Errorf("it listens on %s, and the Service is %s", got, want)
	}
	given, _ := o.at("spec.template.spec.terminationGracePeriodSeconds").(int)
	before, _ := o.at(container + "lifecycle.preStop.sleep.seconds").(int)
	wantTimeToEnd(t, time.Duration(given)*time.Second, time.Duration(before)*time.Second, settings.text(t, "data.TURN_GRACE"), settings.text(t, "data.TURN_CLEANUP_TIMEOUT"))

	servers := serve(t)
	env := map[string]string{}
	for name, value := range settings.at("data").(map[string]any) {
		env[name] = value.(string)
	}
	env["TURN_RESOURCES"], env["TURN_AGENT"], env["TURN_JOURNAL"] = servers.resources, servers.agent, filepath.Join(t.TempDir(), "journal")
	s := listening(t, t.TempDir(), env, filepath.Join(programs, "turn"), o.texts(container+"args")...)
	s.wantReady(t, o.text(t, container+"readinessProbe.httpGet.path"))
	s.wantReady(t, o.text(t, container+"livenessProbe.httpGet.path"))
	s.wantWork(t)
}

func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile(filepath.Join("systemd", "turn.service"))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(unit)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			settings[name] = value
		}
	}
	var flags map[string]any
	text, err := os.ReadFile(filepath.Join("systemd", "turn.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &flags)
	}
	if err != nil {
		t.Fatal(err)
	}
	wantTimeToEnd(t, seconds(t, settings["TimeoutStopSec"]), 0, flags["grace"].(string), flags["cleanup-timeout"].(string))

	servers := serve(t)
	folder := t.TempDir()
	config := filepath.Join(folder, "turn.yaml")
	ours := strings.NewReplacer("http://127.0.0.1:9001", servers.resources, "http://127.0.0.1:9002", servers.agent).Replace(string(text))
	if err := os.WriteFile(config, []byte(ours), 0o644); err != nil {
		t.Fatal(err)
	}
	command := strings.NewReplacer("/usr/local/bin/turn", filepath.Join(programs, "turn"), "/etc/turn/turn.yaml", config).Replace(settings["ExecStart"])
	s := listening(t, folder, map[string]string{"STATE_DIRECTORY": folder}, "bash", "-c", "exec "+command)
	s.wantReady(t, "/readyz")
	if _, err := os.Stat(filepath.Join(folder, "journal")); err != nil {
		t.Errorf("it notes no sessions: %v", err)
	}
	s.wantWork(t)
}

// What the image starts, and its check, as they stand there.
func TestContainer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("container", "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := strings.Cut(string(text), "\nFROM scratch\n")
	if !regexp.MustCompile(`(?m)^USER [1-9]`).MatchString(image) {
		t.Error("the image runs as root")
	}
	if !strings.Contains(image, "\nENV TURN_LISTEN=:8002\n") || !strings.Contains(image, "\nEXPOSE 8002\n") {
		t.Error("the image does not listen on the port that it says")
	}
	servers := serve(t)
	env := map[string]string{"TURN_RESOURCES": servers.resources, "TURN_AGENT": servers.agent, "TURN_TOOL_TRANSPORT": "direct_http"}
	entry := append(commandOf(t, image, "ENTRYPOINT"), commandOf(t, image, "CMD")...)
	s := listening(t, t.TempDir(), env, filepath.Join(programs, entry[0]), entry[1:]...)
	s.wantReady(t, "/readyz")
	_, check, _ := strings.Cut(image, "HEALTHCHECK ")
	probe := commandOf(t, check[strings.Index(check, "CMD"):], "CMD")
	ask := func() *job {
		return start(t, t.TempDir(), map[string]string{"TURN_LISTEN": s.env["TURN_LISTEN"]}, filepath.Join(programs, probe[0]), probe[1:]...)
	}
	ask().wantStatus(t, 0)
	s.wantWork(t)
	gone := ask()
	gone.wantStatus(t, 1)
	if got := gone.log.String(); !strings.Contains(got, s.url+" does not answer") {
		t.Errorf("the check says %q", got)
	}
}

// commandOf is a command that a Containerfile has as a list.
func commandOf(t *testing.T, text, order string) (command []string) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + order + ` (\[.*\])$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("there is no %s", order)
	}
	if err := json.Unmarshal([]byte(found[1]), &command); err != nil {
		t.Fatal(err)
	}
	return command
}

// A draining server is not ready, and says so.
func TestReadyWhileDraining(t *testing.T) {
	t.Parallel()
	servers := serve(t)
	reached, _ := servers.holdAfter(0)
	env := map[string]string{"TURN_RESOURCES": servers.resources, "TURN_AGENT": servers.agent, "TURN_TOOL_TRANSPORT": "direct_http", "TURN_GRACE": "1h"}
	s := listening(t, t.TempDir(), env, filepath.Join(programs, "turn"), "serve")
	s.wantReady(t, "/readyz")
	folder := t.TempDir()
	copyDataset(t, filepath.Join(folder, "tasks.jsonl"))
	caller := start(t, folder, nil, filepath.Join(programs, "turn"), "run", "tasks.jsonl", "-o", "rollouts.jsonl", "--environment", s.url, "--limit", "1")
	await(t, reached, "the episode under way")
	s.terminate(t)
	for deadline := time.Now().Add(eventually); ; time.Sleep(10 * time.Millisecond) {
		ask := start(t, folder, nil, filepath.Join(programs, "turn"), "ready", s.url)
		_ = ask.command.Wait()
		if got := ask.log.String(); ask.command.ProcessState.ExitCode() == 1 && strings.Contains(got, `is not ready: status 503: {"status":"draining"}`) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("it says %q", got)
		}
	}
	caller.kill(t) // its episode is given up, and the server ends
	_ = caller.command.Wait()
	s.wantStatus(t, 0)
}
