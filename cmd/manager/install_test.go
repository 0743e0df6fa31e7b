package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	sigsyaml "sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the generated files anew")

// golden compares a generated file with what it should be.
func golden(t *testing.T, file string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is out of date; run make generate (-want +got):\n%s", file, diff)
	}
}

// files lists what a kustomization is made of, in its order. Ours only list resources, so reading them in turn is all
// that it takes to install.
func files(t *testing.T, dir string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Resources []string `json:"resources"`
	}
	if err := sigsyaml.UnmarshalStrict(raw, &k); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	var all []string
	for _, resource := range k.Resources {
		path := filepath.Join(dir, resource)
		if strings.HasSuffix(resource, ".yaml") {
			all = append(all, path)
		} else {
			all = append(all, files(t, path)...)
		}
	}
	return all
}

// install is the content of dist/install.yaml.
func install(t *testing.T) []byte {
	t.Helper()
	var all bytes.Buffer
	all.WriteString("# Generated from config/default. kubectl apply --server-side -f dist/install.yaml\n")
	for _, file := range files(t, "../../config/default") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("---\n")
		all.Write(bytes.TrimPrefix(raw, []byte("---\n")))
	}
	return all.Bytes()
}

func TestInstallIsCurrent(t *testing.T) {
	t.Parallel()
	golden(t, "../../dist/install.yaml", install(t))
}

// decode calls do with every document of a kind.
func decode[T any](t *testing.T, manifests []byte, kind string, do func(T)) {
	t.Helper()
	var found bool
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		raw, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var head struct {
			Kind string `json:"kind"`
		}
		if err := sigsyaml.Unmarshal(raw, &head); err != nil {
			t.Fatal(err)
		}
		if head.Kind != kind {
			continue
		}
		found = true
		var object T
		if err := sigsyaml.UnmarshalStrict(raw, &object); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		do(object)
	}
	if !found {
		t.Errorf("no %s is installed", kind)
	}
}

func TestManagerMeetsPodSecurityRestricted(t *testing.T) {
	t.Parallel()
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	decode(t, install(t), "Deployment", func(d appsv1.Deployment) {
		template := d.Spec.Template
		for _, result := range checks.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec) {
			if !result.Allowed {
				t.Errorf("%s: %s", result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
		for _, c := range template.Spec.Containers {
			if c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("container %s may write to its root file system", c.Name)
			}
		}
	})
}

// Security T25: the whole list of what the manager may do. A right more is a visible change, and some are never given.
func TestRights(t *testing.T) {
	t.Parallel()
	roles := make(map[string][]rbacv1.PolicyRule)
	manifests := install(t)
	decode(t, manifests, "ClusterRole", func(r rbacv1.ClusterRole) { roles["ClusterRole "+r.Name] = r.Rules })
	decode(t, manifests, "Role", func(r rbacv1.Role) { roles["Role "+r.Name] = r.Rules })
	var rights []string
	bound := func(kind, name, where string) {
		for _, rule := range roles[kind+" "+name] {
			for _, right := range rightsOf(t, rule) {
				rights = append(rights, where+right)
			}
		}
	}
	decode(t, manifests, "ClusterRoleBinding", func(b rbacv1.ClusterRoleBinding) {
		bound(b.RoleRef.Kind, b.RoleRef.Name, "cluster: ")
	})
	decode(t, manifests, "RoleBinding", func(b rbacv1.RoleBinding) {
		bound(b.RoleRef.Kind, b.RoleRef.Name, "own namespace: ")
	})
	slices.Sort(rights)
	golden(t, "testdata/rights.txt", []byte(strings.Join(rights, "\n")+"\n"))
}

// rightsOf writes a rule as one line a resource and fails on what is never given.
func rightsOf(t *testing.T, rule rbacv1.PolicyRule) []string {
	t.Helper()
	var rights []string
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			if strings.HasPrefix(resource, "secrets") || strings.HasPrefix(resource, "pods/") ||
				strings.HasPrefix(resource, "nodes") || group == "rbac.authorization.k8s.io" ||
				strings.Contains(group+resource, "*") {
				t.Errorf("a right on %s %s is never given", group, resource)
			}
			for _, verb := range rule.Verbs {
				if slices.Contains([]string{"*", "escalate", "bind", "impersonate", "deletecollection"}, verb) {
					t.Errorf("the verb %s on %s is never given", verb, resource)
				}
			}
			name := resource
			if group != "" {
				name += "." + group
			}
			rights = append(
				rights,
				fmt.Sprintf("%s: %s", name, strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " ")),
			)
		}
	}
	if len(rule.NonResourceURLs) > 0 {
		t.Errorf("a right on %v is never given", rule.NonResourceURLs)
	}
	return rights
}
