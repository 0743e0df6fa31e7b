package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/postrider/postrider/internal/statusz"
)

const (
	// reportTimeout stays below the two seconds that the manager waits.
	reportTimeout   = 1500 * time.Millisecond
	headerTimeout   = 2 * time.Second
	requestTimeout  = 5 * time.Second
	responseTimeout = 10 * time.Second
	idleTimeout     = 30 * time.Second
	maxHeaderBytes  = 8 << 10
	maxScrapes      = 4
)

// probes is what the endpoints answer from.
type probes struct {
	// alive returns why the process should be restarted, or nil.
	alive func() error
	// ready returns why the process is not doing its work yet or any more, or nil.
	ready    func() error
	report   func(ctx context.Context) statusz.Report
	gatherer prometheus.Gatherer
}

// newServer answers /livez, /readyz, /statusz and /metrics; everything else is not found.
func newServer(p probes, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(p.alive))
	mux.HandleFunc("GET /readyz", probe(p.ready))
	mux.HandleFunc("GET /statusz", p.statusz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.gatherer, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: requestTimeout,
	}))
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      responseTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// listen says what to do when the port is taken.
func listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s (choose another with --listen): %w", address, err)
	}
	return l, nil
}

func probe(why func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := why(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, err.Error()+"\n")
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}

func (p probes) statusz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), reportTimeout)
	defer cancel()
	body, err := encodeReport(p.report(ctx))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(body)
}

// encodeReport keeps a report within what its readers accept: the texts go first.
func encodeReport(r statusz.Report) ([]byte, error) {
	r.Version = statusz.Version
	if r.Conditions == nil {
		r.Conditions = []statusz.Condition{}
	}
	body, err := json.Marshal(r)
	if err != nil || len(body) <= statusz.MaxBytes {
		return body, err
	}
	r.ConfigError = shorten(r.ConfigError)
	conditions := make([]statusz.Condition, 0, len(r.Conditions))
	for _, c := range r.Conditions {
		c.Message = ""
		conditions = append(conditions, c)
	}
	r.Conditions = conditions
	if body, err = json.Marshal(r); err != nil {
		return nil, err
	}
	if len(body) > statusz.MaxBytes {
		return nil, fmt.Errorf("the report has %d bytes, more than %d", len(body), statusz.MaxBytes)
	}
	return body, nil
}
