// Package telemetry gives every binary the same log handler, the same metric registry and the same word
// for which build it is.
//
// It promises one JSON line an entry, and that a Redacted value is never printed. It knows nothing of
// what the binaries do and imports no client of a database, a broker or Kubernetes.
package telemetry

import (
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// version is written in by the release build (-ldflags "-X …/telemetry.version=v1.2.3").
var version = ""

// Build says which build of the program runs.
type Build struct {
	Version   string
	Revision  string
	GoVersion string
}

// String returns the build as --version prints it.
func (b Build) String() string {
	s := b.Version
	if b.Revision != "" {
		s += " (" + b.Revision + ")"
	}
	return s + " " + b.GoVersion
}

// ThisBuild reads what the compiler stamped into the program.
func ThisBuild() Build {
	b := Build{Version: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.GoVersion = info.GoVersion
	if b.Version == "" {
		b.Version = strings.Trim(info.Main.Version, "()")
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value[:min(12, len(s.Value))]
		}
	}
	return b
}

// NewRegistry returns a registry that holds the build, the Go runtime and the process.
func NewRegistry(build Build) *prometheus.Registry {
	r := prometheus.NewRegistry()
	// A new registry refuses none of these.
	_ = r.Register(collectors.NewGoCollector())
	_ = r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	_ = RegisterBuild(r, build)
	return r
}

// RegisterBuild registers the usual constant gauge that dashboards join versions from.
func RegisterBuild(r prometheus.Registerer, b Build) error {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "postrider_build_info", Help: "Which build runs; the value is always 1.",
	}, []string{"version", "revision", "goversion"})
	info.WithLabelValues(b.Version, b.Revision, b.GoVersion).Set(1)
	return r.Register(info)
}
