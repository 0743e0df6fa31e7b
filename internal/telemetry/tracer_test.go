package telemetry

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestStartWithoutACollectorTracesNothing(t *testing.T) { //nolint:paralleltest // sets the environment
	for _, env := range []map[string]string{
		{},
		{envEndpoint: "http://127.0.0.1:4318", envDisabled: "true"},
	} {
		clearEnvironment(t, env)
		tracer, stop, err := StartTracer(t.Context(), "postrider-relay", Build{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer stop(t.Context())
		if tracer != nil {
			t.Errorf("with %v there is a tracer", env)
		}
	}
}

func TestStartRefusesAProtocolItDoesNotSpeak(t *testing.T) { //nolint:paralleltest // sets the environment
	clearEnvironment(t, map[string]string{envEndpoint: "http://127.0.0.1:4317", envProtocol: "grpc"})
	_, _, err := StartTracer(t.Context(), "postrider-relay", Build{}, slog.New(slog.DiscardHandler))
	if !errors.Is(err, ErrTraceProtocol) || !strings.Contains(err.Error(), protocolHTTP) {
		t.Errorf("StartTracer() = %v, want one that names what to set", err)
	}
}

func TestSpansReachTheCollector(t *testing.T) { //nolint:paralleltest // sets the environment
	got := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got <- r.URL.Path + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("Tenant")
	}))
	defer collector.Close()
	clearEnvironment(t, map[string]string{envEndpoint: collector.URL, "OTEL_EXPORTER_OTLP_HEADERS": "tenant=shop"})
	tracer, stop, err := StartTracer(
		t.Context(),
		"postrider-relay",
		Build{Version: "v1"},
		slog.New(slog.DiscardHandler),
	)
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracer.Start(t.Context(), "x")
	span.End()
	stop(t.Context())
	if line := <-got; line != "/v1/traces application/x-protobuf shop" {
		t.Errorf("the collector got %q", line)
	}
}

// A collector that is not there must not fill the log.
func TestACollectorThatIsNotThereIsToldOfOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		teller := &teller{log: slog.New(slog.NewTextHandler(&out, nil)), now: time.Now}
		for range 120 {
			teller.Handle(errors.New("connection refused"))
			time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		}
		if n := strings.Count(out.String(), "Traces are not exported"); n != 2 {
			t.Errorf("%d lines in two minutes, want 2", n)
		}
	})
}

func clearEnvironment(t *testing.T, set map[string]string) {
	t.Helper()
	for _, name := range []string{envEndpoint, envTracesEndpoint, envProtocol, envTracesProtocol, envDisabled} {
		t.Setenv(name, set[name])
	}
	for name, value := range set {
		t.Setenv(name, value)
	}
}
