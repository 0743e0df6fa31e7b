package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine is where the numbers come from.
type Machine struct {
	System   string `json:"system"`
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	Go       string `json:"go"`
	Postgres string `json:"postgres"`
	// Settings are those of PostgreSQL that decide what a commit means.
	Settings string `json:"settings"`
}

// String is the line below a table.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d × %s, %s, PostgreSQL %s (%s)", m.System, m.CPUs, m.CPU, m.Go, m.Postgres, m.Settings)
}

func (t *table) machine(ctx context.Context) (Machine, error) {
	m := Machine{
		System: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuModel(), CPUs: runtime.NumCPU(), Go: runtime.Version(),
	}
	const settingsSQL = `SELECT current_setting('server_version'),
		string_agg(name || ' ' || current_setting(name), ', ' ORDER BY name)
		FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size')`
	if err := t.plain.QueryRow(ctx, settingsSQL).Scan(&m.Postgres, &m.Settings); err != nil {
		return m, fmt.Errorf("read the server's settings: %w", err)
	}
	return m, nil
}

// cpuModel names the processor where the system tells it in a file.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer func() { _ = f.Close() }() // only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}
