// Checks the files of deploy/ as the programs that read them would: the Compose file with the
// library of docker compose, the Kubernetes manifests with kustomize and with the API server's own
// decoding, defaults and validation. scripts/deploy_check.sh builds and calls it.
//
//	deploy-check compose FILE OUT
//	deploy-check kubernetes DIRECTORY OUT [FILE...]      (FILEs: applied beside the directory)
//
// For each container that runs guanxi, OUT gets a directory with its arguments, its environment and
// the settings that it mounts, for the binary to judge.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// A service needs at most this to stop: http.drain_timeout_ms (10 s), one last statement of the
// database (20 s), and a few seconds for records and leases.
const stopTime = 40 * time.Second

// What one container of guanxi is given.
type run struct {
	name        string
	arguments   []string
	environment map[string]string
	// The content of files by the path at which the container sees them.
	files map[string]string
}

func main() {
	if len(os.Args) < 4 {
		fail([]string{"usage: deploy-check compose|kubernetes PLACE OUT"})
	}
	kind, place, out := os.Args[1], os.Args[2], os.Args[3]
	var runs []run
	var wrong []string
	switch kind {
	case "compose":
		runs, wrong = checkCompose(place)
	case "kubernetes":
		runs, wrong = checkKubernetes(place, os.Args[4:])
	default:
		wrong = []string{kind + " is neither compose nor kubernetes"}
	}
	if len(wrong) == 0 && len(runs) == 0 {
		wrong = []string{"no container runs guanxi"}
	}
	for _, run := range runs {
		if err := run.write(out); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	fail(wrong)
}

func fail(wrong []string) {
	for _, line := range wrong {
		fmt.Fprintln(os.Stderr, line)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}

// The file that --config names, as the container sees it.
func (run run) settings() (string, error) {
	for at, argument := range run.arguments {
		if argument == "--config" && at+1 < len(run.arguments) {
			path := run.arguments[at+1]
			content, mounted := run.files[path]
			if !mounted {
				return "", fmt.Errorf("%s: nothing is mounted at %s, which --config names", run.name, path)
			}
			return content, nil
		}
	}
	return "", nil
}

func (run run) write(out string) error {
	settings, err := run.settings()
	if err != nil {
		return err
	}
	var environment strings.Builder
	for _, name := range sorted(run.environment) {
		fmt.Fprintf(&environment, "%s=%s\n", name, run.environment[name])
	}
	directory := filepath.Join(out, run.name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"arguments":   strings.Join(run.arguments, "\n") + "\n",
		"environment": environment.String(),
		"settings":    settings,
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// An image says which one it is: a tag that is not `latest`, or a digest.
func pinned(image string) bool {
	_, name, found := cutLast(image, "/")
	if !found {
		name = image
	}
	_, tag, tagged := strings.Cut(name, ":")
	return strings.Contains(image, "@sha256:") || (tagged && tag != "" && tag != "latest")
}

func cutLast(text, separator string) (string, string, bool) {
	at := strings.LastIndex(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(separator):], true
}

func sorted[V any](values map[string]V) []string {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
