package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// Loads the file as docker compose does (schema, interpolation, merge, references between
// services, volumes and networks), then looks at what no schema knows.
func checkCompose(file string) ([]run, []string) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithDiscardEnvFile)
	if err != nil {
		return nil, []string{err.Error()}
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, []string{fmt.Sprintf("%s: %v", file, err)}
	}
	var runs []run
	var wrong []string
	for _, name := range project.ServiceNames() {
		service := project.Services[name]
		say := func(format string, values ...any) {
			wrong = append(wrong, fmt.Sprintf("%s: %s: ", file, name)+fmt.Sprintf(format, values...))
		}
		if !pinned(service.Image) {
			say("the image %q has no fixed version", service.Image)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				say("port %s is published beyond 127.0.0.1", port.Published)
			}
		}
		if service.HealthCheck == nil {
			say("it has no healthcheck; say disable where there is nothing to ask")
		}
		if service.Restart == "" {
			say("it has no restart policy")
		}
		for dependency, condition := range service.DependsOn {
			wrong = append(wrong, checkDependency(file, name, project.Services[dependency], condition)...)
		}
		files := map[string]string{}
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			content, err := os.ReadFile(volume.Source)
			if err != nil {
				say("%v", err)
			}
			files[volume.Target] = string(content)
		}
		if service.Build == nil {
			continue
		}
		dockerfile := service.Build.Context + "/" + service.Build.Dockerfile
		if _, err := os.Stat(dockerfile); err != nil {
			say("%v", err)
		}
		if grace := service.StopGracePeriod; grace == nil || time.Duration(*grace) < stopTime {
			say("stop_grace_period is below %s", stopTime)
		}
		environment := map[string]string{}
		for variable, value := range service.Environment {
			if value != nil {
				environment[variable] = *value
			}
		}
		runs = append(runs, run{"compose-" + name, service.Command, environment, files})
	}
	return runs, wrong
}

// A condition that can never be met would keep everything waiting.
func checkDependency(file, name string, on types.ServiceConfig, condition types.ServiceDependency) []string {
	switch condition.Condition {
	case types.ServiceConditionHealthy:
		if on.HealthCheck == nil || on.HealthCheck.Disable {
			return []string{fmt.Sprintf("%s: %s waits for the health of %s, which nobody checks", file, name, on.Name)}
		}
	case types.ServiceConditionCompletedSuccessfully:
		if on.Restart != "no" && !strings.HasPrefix(on.Restart, types.RestartPolicyOnFailure) {
			return []string{fmt.Sprintf("%s: %s waits for the end of %s, which always restarts", file, name, on.Name)}
		}
	}
	return nil
}
