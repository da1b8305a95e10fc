// Package manifests checks the manifests of deploy/kubernetes. It is a module of its
// own so that Polder's has no need of Kubernetes' types.
package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	sigs "sigs.k8s.io/yaml"
)

const dir = "../../deploy/kubernetes/"

// TestManifestsAreWhatKubernetesReads: every field exists and has the right type.
func TestManifestsAreWhatKubernetesReads(t *testing.T) {
	kinds := map[string]func() any{
		"Service":             func() any { return new(corev1.Service) },
		"StatefulSet":         func() any { return new(appsv1.StatefulSet) },
		"Deployment":          func() any { return new(appsv1.Deployment) },
		"PodDisruptionBudget": func() any { return new(policyv1.PodDisruptionBudget) },
	}
	var kustomization struct {
		APIVersion string              `json:"apiVersion"`
		Kind       string              `json:"kind"`
		Resources  []string            `json:"resources"`
		Images     []map[string]string `json:"images"`
	}
	b, err := os.ReadFile(dir + "kustomization.yaml")
	if err == nil {
		err = sigs.UnmarshalStrict(b, &kustomization)
	}
	if err != nil || len(kustomization.Resources) == 0 {
		t.Fatalf("kustomization.yaml: %+v, %v", kustomization, err)
	}
	var found []string
	for _, name := range kustomization.Resources {
		b, err := os.ReadFile(dir + name)
		if err != nil {
			t.Fatal(err)
		}
		docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
		for {
			doc, err := docs.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var head struct{ Kind string }
			if err := sigs.Unmarshal(doc, &head); err != nil || kinds[head.Kind] == nil {
				t.Fatalf("%s has a %q, %v", name, head.Kind, err)
			}
			object := kinds[head.Kind]()
			if err := strictly(doc, object); err != nil {
				t.Errorf("%s, %s: %v", name, head.Kind, err)
			}
			found = append(found, head.Kind)
			switch o := object.(type) {
			case *appsv1.StatefulSet:
				checkPod(t, o.Spec.Template)
			case *appsv1.Deployment:
				checkPod(t, o.Spec.Template)
			}
		}
	}
	slices.Sort(found)
	if want := []string{"Deployment", "PodDisruptionBudget", "Service", "Service", "StatefulSet"}; !slices.Equal(found, want) {
		t.Errorf("the manifests have %v, want %v", found, want)
	}
}

// strictly decodes as the API server does when it is strict: it minds the case of
// letters, other than sigs.k8s.io/yaml.
func strictly(doc []byte, object any) error {
	b, err := sigs.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	wrong, err := json.UnmarshalStrict(b, object)
	return errors.Join(append(wrong, err)...)
}

// checkPod checks what a strict decoder does not: names that refer to one another.
func checkPod(t *testing.T, pod corev1.PodTemplateSpec) {
	t.Helper()
	c := pod.Spec.Containers[0]
	if c.Resources.Limits.Memory().IsZero() {
		t.Error("there is no limit of memory")
	}
	ports, volumes := map[string]bool{}, map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %q", m.Name)
		}
	}
	for what, p := range map[string]*corev1.Probe{"readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		switch {
		case p == nil:
			t.Errorf("there is no %s probe", what)
		case p.HTTPGet != nil && (!ports[p.HTTPGet.Port.StrVal] || p.HTTPGet.Path != "/healthz"):
			t.Errorf("%s asks for %s at port %s", what, p.HTTPGet.Path, p.HTTPGet.Port.StrVal)
		case p.TCPSocket != nil && !ports[p.TCPSocket.Port.StrVal]:
			t.Errorf("%s asks at port %s", what, p.TCPSocket.Port.StrVal)
		}
	}
}
