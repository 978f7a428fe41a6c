package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podoptions "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Builds the directory as `kubectl apply -k` does, and takes each object, and each of the files
// beside it, through what the API server does at a create: strict decoding, defaults, validation.
func checkKubernetes(directory string, beside []string) ([]run, []string) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return nil, []string{fmt.Sprintf("%s: %v", directory, err)}
	}
	var wrong []string
	var texts [][]byte
	for _, resource := range built.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", directory, err))
			continue
		}
		texts = append(texts, text)
	}
	for _, file := range beside {
		text, err := os.ReadFile(file)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		texts = append(texts, text)
	}
	objects := newObjects(directory)
	for _, text := range texts {
		object, err := decoded(text)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", directory, err))
			continue
		}
		for _, err := range validated(object) {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %v", directory, named(object), err))
		}
		objects.add(object)
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	return objects.runs(), objects.wrong()
}

// The object as the API server holds it. A field that does not exist is an error, as it is with
// `kubectl apply --validate=strict`.
func decoded(text []byte) (runtime.Object, error) {
	scheme := legacyscheme.Scheme
	options := json.SerializerOptions{Yaml: true, Strict: true}
	serializer := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, options)
	object, _, err := serializer.Decode(text, nil, nil)
	if err != nil {
		var shown struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if yaml.Unmarshal(text, &shown) == nil {
			err = fmt.Errorf("%s %s: %w", shown.Kind, shown.Metadata.Name, err)
		}
		return nil, err
	}
	scheme.Default(object)
	return scheme.UnsafeConvertToVersion(object, runtime.InternalGroupVersioner)
}

func validated(object runtime.Object) field.ErrorList {
	pods := func(template *core.PodTemplateSpec) corevalidation.PodValidationOptions {
		return podoptions.GetValidationOptionsFromPodTemplate(template, nil)
	}
	switch object := object.(type) {
	case *core.Namespace:
		return corevalidation.ValidateNamespace(object)
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(object)
	case *core.Secret:
		return corevalidation.ValidateSecret(object)
	case *core.Service:
		// The API server copies the one into the other before it validates.
		if object.Spec.ClusterIP != "" && len(object.Spec.ClusterIPs) == 0 {
			object.Spec.ClusterIPs = []string{object.Spec.ClusterIP}
		}
		return corevalidation.ValidateServiceCreate(object)
	case *apps.Deployment:
		return appsvalidation.ValidateDeployment(object, pods(&object.Spec.Template))
	case *apps.StatefulSet:
		return appsvalidation.ValidateStatefulSet(object, pods(&object.Spec.Template))
	case *batch.Job:
		template := &batch.JobTemplateSpec{ObjectMeta: object.ObjectMeta, Spec: object.Spec}
		return batchvalidation.ValidateJobTemplateSpec(template, nil, pods(&object.Spec.Template))
	case *autoscaling.HorizontalPodAutoscaler:
		options := autoscalingvalidation.HorizontalPodAutoscalerSpecValidationOptions{MinReplicasLowerBound: 1}
		return autoscalingvalidation.ValidateHorizontalPodAutoscaler(object, options)
	case *policy.PodDisruptionBudget:
		return policyvalidation.ValidatePodDisruptionBudget(object, policyvalidation.PodDisruptionBudgetValidationOptions{})
	case *networking.NetworkPolicy:
		return networkingvalidation.ValidateNetworkPolicy(object, networkingvalidation.NetworkPolicyValidationOptions{})
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("nobody validates %T yet; add it to deploy/check", object))}
}

func named(object runtime.Object) string {
	name := "?"
	if accessor, err := meta.Accessor(object); err == nil {
		name = accessor.GetName()
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
	if err != nil || len(kinds) == 0 {
		return name
	}
	return kinds[0].Kind + " " + name
}
