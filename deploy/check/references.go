package main

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/policy"
	admission "k8s.io/pod-security-admission/api"
	security "k8s.io/pod-security-admission/policy"
)

// All objects of one apply, for what the API server leaves to the day on which it fails: names and
// labels that lead nowhere.
type objects struct {
	directory   string
	namespace   string
	all         []runtime.Object
	config      map[string]map[string]string
	secrets     map[string]map[string]string
	deployments map[string]bool
	pods        []pods
}

// A template of pods, and the object that it belongs to.
type pods struct {
	owner    string
	template *core.PodTemplateSpec
}

func newObjects(directory string) *objects {
	return &objects{
		directory:   directory,
		config:      map[string]map[string]string{},
		secrets:     map[string]map[string]string{},
		deployments: map[string]bool{},
	}
}

func (o *objects) add(object runtime.Object) {
	o.all = append(o.all, object)
	owned := func(template *core.PodTemplateSpec) {
		o.pods = append(o.pods, pods{named(object), template})
	}
	switch object := object.(type) {
	case *core.Namespace:
		o.namespace = object.Name
	case *core.ConfigMap:
		o.config[object.Name] = object.Data
	case *core.Secret:
		values := map[string]string{}
		for key, value := range object.Data {
			values[key] = string(value)
		}
		o.secrets[object.Name] = values
	case *apps.Deployment:
		o.deployments[object.Name] = true
		owned(&object.Spec.Template)
	case *apps.StatefulSet:
		owned(&object.Spec.Template)
	case *batch.Job:
		owned(&object.Spec.Template)
	}
}

// Each container as it would run.
func (o *objects) runs() []run {
	var runs []run
	for _, pods := range o.pods {
		for _, container := range pods.template.Spec.Containers {
			environment := map[string]string{}
			for _, source := range container.EnvFrom {
				if source.ConfigMapRef != nil {
					for name, value := range o.config[source.ConfigMapRef.Name] {
						environment[name] = value
					}
				}
			}
			for _, variable := range container.Env {
				environment[variable.Name] = variable.Value
				if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil {
					environment[variable.Name] = o.secrets[from.SecretKeyRef.Name][from.SecretKeyRef.Key]
				}
			}
			files := map[string]string{}
			for _, mount := range container.VolumeMounts {
				for _, volume := range pods.template.Spec.Volumes {
					if volume.Name == mount.Name && volume.ConfigMap != nil {
						for key, content := range o.config[volume.ConfigMap.Name] {
							files[path.Join(mount.MountPath, key)] = content
						}
					}
				}
			}
			name := fmt.Sprintf("kubernetes-%s-%s", filepath.Base(o.directory), pods.owner)
			runs = append(runs, run{name, container.Args, environment, files})
		}
	}
	return runs
}

func (o *objects) wrong() []string {
	var wrong []string
	say := func(object, format string, values ...any) {
		wrong = append(wrong, o.directory+": "+object+": "+fmt.Sprintf(format, values...))
	}
	for _, object := range o.all {
		name := named(object)
		switch object := object.(type) {
		case *core.Service:
			for _, port := range object.Spec.Ports {
				if !o.listens(labels.SelectorFromSet(object.Spec.Selector), port.TargetPort.String()) {
					say(name, "no pod that it selects has the port %s", port.TargetPort.String())
				}
			}
		case *policy.PodDisruptionBudget:
			if !o.selects(object.Spec.Selector) {
				say(name, "it selects no pod")
			}
		case *networking.NetworkPolicy:
			if !o.selects(&object.Spec.PodSelector) {
				say(name, "it selects no pod")
			}
		case *autoscaling.HorizontalPodAutoscaler:
			if target := object.Spec.ScaleTargetRef.Name; !o.deployments[target] {
				say(name, "there is no deployment %s to scale", target)
			}
		}
		if accessor, ok := object.(metav1.Object); ok && o.namespace != "" {
			if namespace := accessor.GetNamespace(); namespace != "" && namespace != o.namespace {
				say(name, "it is in the namespace %s, the others are in %s", namespace, o.namespace)
			}
		}
	}
	for _, pods := range o.pods {
		o.checkPods(pods, func(format string, values ...any) { say(pods.owner, format, values...) })
	}
	return wrong
}

func (o *objects) selects(selector *metav1.LabelSelector) bool {
	matcher, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false
	}
	for _, pods := range o.pods {
		if matcher.Matches(labels.Set(pods.template.Labels)) {
			return true
		}
	}
	return false
}

func (o *objects) listens(selector labels.Selector, wanted string) bool {
	for _, pods := range o.pods {
		if !selector.Matches(labels.Set(pods.template.Labels)) {
			continue
		}
		for _, container := range pods.template.Spec.Containers {
			for _, port := range container.Ports {
				if port.Name == wanted || strconv.Itoa(int(port.ContainerPort)) == wanted {
					return true
				}
			}
		}
	}
	return false
}

func (o *objects) checkPods(pods pods, say func(string, ...any)) {
	spec := &pods.template.Spec
	for _, volume := range spec.Volumes {
		if volume.ConfigMap != nil && o.config[volume.ConfigMap.Name] == nil {
			say("there is no ConfigMap %s", volume.ConfigMap.Name)
		}
	}
	for _, container := range spec.Containers {
		if !pinned(container.Image) {
			say("the image %q has no fixed version", container.Image)
		}
		if len(container.Resources.Requests) == 0 {
			say("it asks for no resources")
		}
		for _, source := range container.EnvFrom {
			if source.ConfigMapRef != nil && o.config[source.ConfigMapRef.Name] == nil {
				say("there is no ConfigMap %s", source.ConfigMapRef.Name)
			}
		}
		seen := map[string]bool{}
		for _, variable := range container.Env {
			if seen[variable.Name] {
				say("it has the variable %s twice", variable.Name)
			}
			seen[variable.Name] = true
			if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil {
				if _, there := o.secrets[from.SecretKeyRef.Name][from.SecretKeyRef.Key]; !there {
					say("there is no key %s in a Secret %s", from.SecretKeyRef.Key, from.SecretKeyRef.Name)
				}
			}
		}
	}
	if spec.RestartPolicy == core.RestartPolicyAlways {
		grace := time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second
		if grace < stopTime {
			say("terminationGracePeriodSeconds is below %s", stopTime)
		}
		for _, container := range spec.Containers {
			if container.ReadinessProbe == nil || container.LivenessProbe == nil || container.StartupProbe == nil {
				say("it lacks one of its probes: startup, liveness, readiness")
			}
		}
	}
	o.checkSecurity(pods.template, say)
}

// What the namespace's label `enforce: restricted` would refuse.
func (o *objects) checkSecurity(template *core.PodTemplateSpec, say func(string, ...any)) {
	var versioned corev1.PodSpec
	if err := corev1conversion.Convert_core_PodSpec_To_v1_PodSpec(&template.Spec, &versioned, nil); err != nil {
		say("%v", err)
		return
	}
	evaluator, err := security.NewEvaluator(security.DefaultChecks())
	if err != nil {
		say("%v", err)
		return
	}
	level := admission.LevelVersion{Level: admission.LevelRestricted, Version: admission.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(level, &template.ObjectMeta, &versioned) {
		if !result.Allowed {
			say("pod security, restricted: %s: %s", result.ForbiddenReason, result.ForbiddenDetail)
		}
	}
}
