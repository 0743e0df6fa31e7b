package worker

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/telemetry"
)

func TestHelpGoesToTheOutputAndMistakesDoNot(t *testing.T) {
	t.Parallel()
	var out, failures bytes.Buffer
	if _, err := ParseFlags("relay", []string{"--help"}, telemetry.Build{}, &out, &failures); !errors.Is(err, ErrDone) {
		t.Errorf("--help: error = %v, want %v", err, ErrDone)
	}
	if !strings.HasPrefix(out.String(), "Usage: relay [flags]\n") || failures.Len() > 0 {
		t.Errorf("--help printed %q and on failures %q", &out, &failures)
	}
	out.Reset()
	if _, err := ParseFlags("relay", []string{"--dsn=x"}, telemetry.Build{}, &out, &failures); err == nil {
		t.Error("an unknown flag was accepted")
	}
	if want := "flag provided but not defined: -dsn\n"; out.Len() > 0 || failures.String() != want {
		t.Errorf("an unknown flag printed %q and on failures %q, want %q", &out, &failures, want)
	}
}

func TestTheCommandLine(t *testing.T) {
	t.Parallel()
	defaults := Flags{
		ConfigPath: "/etc/postrider/config.json", Listen: ":8080", LogLevel: slog.LevelInfo, DrainTimeout: DrainTimeout,
	}
	changed := Flags{
		ConfigPath: "a.json", Listen: "127.0.0.1:0", LogLevel: slog.LevelDebug, DrainTimeout: time.Second,
		AllowLoopback: true,
	}

	cases := map[string]struct {
		args []string
		want Flags
		err  string
		out  string
	}{
		"nothing is needed in a pod": {want: defaults},
		"everything can be said": {
			args: []string{
				"--config", "a.json", "--listen=127.0.0.1:0", "--log-level", "debug", "--drain-timeout", "1s",
				"--allow-loopback",
			},
			want: changed,
		},
		"the version is printed":     {args: []string{"--version"}, err: "done", out: "v1 (abc) go1"},
		"help is printed":            {args: []string{"--help"}, err: "done", out: "-config"},
		"an unknown flag is refused": {args: []string{"--dsn=x"}, err: "not defined", out: "-dsn"},
		"an argument is refused": {
			args: []string{"start"},
			err:  "unexpected",
			out:  `unexpected argument "start"`,
		},
		"an unknown level is refused": {args: []string{"--log-level=loud"}, err: "log level", out: "--log-level"},
		"a drain of no time is refused": {
			args: []string{"--drain-timeout=0s"},
			err:  "above 0",
			out:  "--drain-timeout",
		},
		"a drain of many words is refused": {
			args: []string{"--drain-timeout=soon"},
			err:  "invalid value",
			out:  "drain-timeout",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			build := telemetry.Build{Version: "v1", Revision: "abc", GoVersion: "go1"}
			got, err := ParseFlags("relay", tc.args, build, &out, &out)
			if tc.err == "" && (err != nil || got != tc.want) {
				t.Errorf("ParseFlags() = %+v, %v, want %+v", got, err, tc.want)
			}
			if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error = %v, want %q", err, tc.err)
			}
			if errors.Is(err, ErrDone) != (tc.err == "done") {
				t.Errorf("error = %v", err)
			}
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("printed %q, want %q", out.String(), tc.out)
			}
		})
	}
}

func TestAnUnknownTraceProtocolEndsTheCommandAtOnce(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	var out, failures bytes.Buffer
	code := Main(t.Context(), nil, &out, &failures, Parts[struct{}]{Name: "relay"})
	if code != ExitUsage || !strings.Contains(failures.String(), "OTEL_EXPORTER_OTLP_PROTOCOL") {
		t.Errorf("exit code %d, printed %s", code, &failures)
	}
}
