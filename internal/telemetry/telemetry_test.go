package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/telemetry"
)

func TestARedactedValueIsNeverPrinted(t *testing.T) {
	t.Parallel()
	secret := telemetry.Redacted("canary")
	holder := struct {
		User     string
		Password telemetry.Redacted
		Others   []telemetry.Redacted
	}{"me", secret, []telemetry.Redacted{secret}}

	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+" ", secret)
		fmt.Fprintf(&out, verb+"\n", holder)
	}
	if err := json.NewEncoder(&out).Encode(holder); err != nil {
		t.Fatal(err)
	}
	log := telemetry.NewLogger(&out, slog.LevelInfo)
	log.Info("Opened", "password", secret, "holder", holder, "err", fmt.Errorf("dial: %v", secret))

	if strings.Contains(out.String(), "canary") || strings.Contains(out.String(), "63616e617279") {
		t.Errorf("the secret was printed:\n%s", out.String())
	}
	if !strings.Contains(out.String(), `"password":"[redacted]"`) {
		t.Errorf("the log does not say that something was left out:\n%s", out.String())
	}
	if secret.Secret() != "canary" {
		t.Errorf("Secret() = %q", secret.Secret())
	}
}

func TestALogEntryIsOneBoundedLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := telemetry.NewLogger(&out, slog.LevelInfo)
	long := strings.Repeat("é\n\x1b[31m", 10_000)

	log.Info("Refused", "detail", long, "err", errors.New(long))

	if n := strings.Count(out.String(), "\n"); n != 1 || out.Len() > 32<<10 {
		t.Fatalf("%d lines in %d bytes", n, out.Len())
	}
	var entry map[string]any
	if err := json.Unmarshal(out.Bytes(), &entry); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"time", "level", "msg", "detail", "err"} {
		if _, ok := entry[key]; !ok {
			t.Errorf("no key %s in %v", key, entry)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("a control character reached the log")
	}
}

func TestTheRegistryNamesTheBuild(t *testing.T) {
	t.Parallel()
	build := telemetry.Build{Version: "v1.2.3", Revision: "abc", GoVersion: "go1.26"}
	families, err := telemetry.NewRegistry(build).Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]string)
	for _, f := range families {
		names[f.GetName()] = f.String()
	}
	if !strings.Contains(names["postrider_build_info"], "v1.2.3") {
		t.Errorf("postrider_build_info = %q", names["postrider_build_info"])
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if names[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	if got := build.String(); got != "v1.2.3 (abc) go1.26" {
		t.Errorf("String() = %q", got)
	}
}

func TestALevelIsOneOfFourWords(t *testing.T) {
	t.Parallel()
	if got, err := telemetry.ParseLevel("DEBUG"); err != nil || got != slog.LevelDebug {
		t.Errorf("ParseLevel(DEBUG) = %v, %v", got, err)
	}
	if _, err := telemetry.ParseLevel("loud"); err == nil {
		t.Error("ParseLevel(loud) gave no error")
	}
}
