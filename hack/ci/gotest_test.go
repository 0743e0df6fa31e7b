package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadTestEvents(t *testing.T) {
	t.Parallel()

	const pkg = "example.org/shop"
	cases := map[string]struct {
		events     []string
		exit       error
		wantPassed int
		wantErr    string
		wantOut    string
	}{
		"tests and their subtests that pass are counted": {
			events: []string{
				`{"Action":"run","Package":"example.org/shop","Test":"TestA"}`,
				`{"Action":"output","Package":"example.org/shop","Test":"TestA","Output":"quiet\n"}`,
				`{"Action":"pass","Package":"example.org/shop","Test":"TestA/sub"}`,
				`{"Action":"pass","Package":"example.org/shop","Test":"TestA"}`,
				`{"Action":"pass","Package":"example.org/shop","Elapsed":1.5}`,
			},
			wantPassed: 2,
			wantOut:    "ok   example.org/shop (2 passed, 1.5s)\n",
		},
		"a failing test is named and its output shown": {
			events: []string{
				`{"Action":"output","Package":"example.org/shop","Test":"TestA","Output":"want 1, got 2\n"}`,
				`{"Action":"fail","Package":"example.org/shop","Test":"TestA"}`,
				`{"Action":"fail","Package":"example.org/shop"}`,
			},
			exit:    errors.New("exit status 1"),
			wantErr: "1 failed (example.org/shop.TestA)",
			wantOut: "FAIL example.org/shop.TestA\nwant 1, got 2\nFAIL example.org/shop\n",
		},
		"a package that ends without a failing test, as a panic makes it, is a failure": {
			events:  []string{`{"Action":"fail","Package":"example.org/shop"}`},
			exit:    errors.New("exit status 1"),
			wantErr: "1 failed (example.org/shop)",
			wantOut: "FAIL example.org/shop\n",
		},
		"a package that does not build is a failure": {
			events: []string{
				`{"Action":"build-output","ImportPath":"example.org/shop","Output":"x.go:1: undefined: y\n"}`,
				`{"Action":"build-fail","ImportPath":"example.org/shop"}`,
			},
			exit:    errors.New("exit status 1"),
			wantErr: "1 failed (example.org/shop)",
			wantOut: "FAIL example.org/shop\nx.go:1: undefined: y\n",
		},
		"a test that skips itself is a failure": {
			events: []string{
				`{"Action":"pass","Package":"example.org/shop","Test":"TestA"}`,
				`{"Action":"skip","Package":"example.org/shop","Test":"TestB"}`,
			},
			wantPassed: 1,
			wantErr:    "1 skipped themselves (example.org/shop.TestB)",
		},
		"a package in which no test ran is a failure": {
			events:  []string{`{"Action":"pass","Package":"example.org/shop"}`},
			wantErr: "no test ran in example.org/shop",
			wantOut: "ok   example.org/shop (0 passed, 0.0s)\n",
		},
		"an exit code without a failing test is a failure": {
			events:     []string{`{"Action":"pass","Package":"example.org/shop","Test":"TestA"}`},
			exit:       errors.New("exit status 2"),
			wantPassed: 1,
			wantErr:    "go test: exit status 2",
		},
		"other lines pass through": {
			events: []string{
				`servers: PostgreSQL 17 on port 5433`,
				`{"Action":"pass","Package":"example.org/shop","Test":"TestA"}`,
			},
			wantPassed: 1,
			wantOut:    "servers: PostgreSQL 17 on port 5433\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer

			counts, readErr := readTestEvents(strings.NewReader(strings.Join(tc.events, "\n")+"\n"), &out)
			err := counts.verdict([]testPackage{{path: pkg}}, readErr, tc.exit)

			if counts.passed != tc.wantPassed {
				t.Errorf("passed = %d, want %d", counts.passed, tc.wantPassed)
			}
			if got := errorText(err); got != tc.wantErr {
				t.Errorf("verdict = %q, want %q", got, tc.wantErr)
			}
			if diff := cmp.Diff(tc.wantOut, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestPackagesWithKubernetesAreSetApart(t *testing.T) {
	t.Parallel()
	same := cmp.AllowUnexported(testPackage{})
	race, plain := splitPackages(strings.Join([]string{
		"example.org/shop.test\t/src/shop\tfmt example.org/shop",
		"example.org/cmd/shop\t/src/cmd/shop\tfmt k8s.io/api/core/v1",
		"example.org/desired.test\t/src/desired\tk8s.io/api/core/v1 fmt",
		"example.org/manager.test\t/src/manager\tfmt sigs.k8s.io/controller-runtime/pkg/client",
		"example.org/plain.test\t/src/plain\tfmt sigs.k8s.io/yaml example.org/k8s.io/notes",
	}, "\n"))
	if diff := cmp.Diff(
		[]testPackage{{"example.org/shop", "/src/shop"}, {"example.org/plain", "/src/plain"}},
		race,
		same,
	); diff != "" {
		t.Errorf("with race detector (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(
		[]testPackage{{"example.org/desired", "/src/desired"}, {"example.org/manager", "/src/manager"}},
		plain,
		same,
	); diff != "" {
		t.Errorf("without (-want +got):\n%s", diff)
	}
}
