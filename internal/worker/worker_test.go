package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/internal/telemetry"
)

// settings is the config of the tests' pipeline.
type settings struct {
	Name  string
	Needs string // a value that cannot change without a restart
}

// load reads "name needs"; a name of "bad" is refused.
func load(path string) (settings, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return settings{}, err
	}
	name, needs, _ := strings.Cut(string(b), " ")
	if name == "bad" {
		return settings{}, errors.New(path + ": name: must not be bad")
	}
	return settings{Name: name, Needs: needs}, nil
}

// lane is a pipeline that moves nothing.
type lane struct {
	stuck bool // never returns before it is killed

	mu        sync.Mutex
	cfg       settings
	refreshes int
	released  bool
	killed    chan struct{}
}

func newLane(cfg settings) *lane { return &lane{cfg: cfg, killed: make(chan struct{})} }

func (l *lane) Run(ctx context.Context) error {
	if l.stuck {
		<-l.killed
		return errors.New("killed")
	}
	<-ctx.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	return nil
}

func (l *lane) Reconfigure(cfg settings) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cfg.Needs != l.cfg.Needs {
		return errors.New("needs: a change needs a restart")
	}
	l.cfg = cfg
	return nil
}

func (l *lane) Refresh() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes++
}

func (l *lane) Report(context.Context) statusz.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return statusz.Report{Name: l.cfg.Name, Generation: int64(l.refreshes)}
}

func (l *lane) Kill() { close(l.killed) }

// process is a worker of the tests that serves on a free port.
type process struct {
	lane    *lane
	url     string
	config  string
	secrets string
	stop    context.CancelFunc
	ended   chan error
}

func start(t *testing.T, content string) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{
		config: filepath.Join(dir, "config"), secrets: filepath.Join(dir, "secrets"), ended: make(chan error, 1),
	}
	write(t, p.config, content)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.url = "http://" + listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	started := make(chan *lane, 1)
	options := Options[settings]{
		Log: quiet(), Registry: telemetry.NewRegistry(telemetry.Build{}), Watchdog: NewWatchdog(time.Now),
		ConfigPath: p.config, DrainTimeout: 10 * time.Second, Load: load,
		Files: func(settings) []string { return []string{p.secrets} },
		New: func(cfg settings) (Pipeline[settings], error) {
			l := newLane(cfg)
			started <- l
			return l, nil
		},
	}
	go func() { p.ended <- serve(ctx, options, listener) }()
	t.Cleanup(stop)
	select {
	case p.lane = <-started:
	case err := <-p.ended:
		t.Fatalf("the worker ended: %v", err)
	}
	return p
}

func (p *process) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(p.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (p *process) report(t *testing.T) statusz.Report {
	t.Helper()
	_, body := p.get(t, "/statusz")
	var r statusz.Report
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return r
}

// eventually asks for the report until it is as wanted.
func (p *process) eventually(t *testing.T, what string, ok func(statusz.Report) bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(15 * time.Second)
	for {
		r := p.report(t)
		if ok(r) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not %s: %+v", what, r)
		}
	}
}

func TestTheEndpoints(t *testing.T) {
	t.Parallel()
	p := start(t, "orders x")

	cases := map[string]struct {
		path   string
		status int
		body   string
	}{
		"livez says ok while the loops move":    {"/livez", http.StatusOK, "ok\n"},
		"readyz says ok while the loops run":    {"/readyz", http.StatusOK, "ok\n"},
		"statusz is the pipeline's report":      {"/statusz", http.StatusOK, `"name":"orders"`},
		"metrics name the build":                {"/metrics", http.StatusOK, "postrider_build_info"},
		"nothing else is there":                 {"/debug/pprof/", http.StatusNotFound, ""},
		"not even a listing of what there is":   {"/", http.StatusNotFound, ""},
		"a path is never completed or followed": {"/statusz/", http.StatusNotFound, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, body := p.get(t, tc.path)
			if status != tc.status || !strings.Contains(body, tc.body) {
				t.Errorf("GET %s = %d %q, want %d %q", tc.path, status, body, tc.status, tc.body)
			}
		})
	}
}

func TestAGoodConfigIsTakenOverWhileItRuns(t *testing.T) {
	t.Parallel()
	p := start(t, "orders x")
	write(t, p.config, "invoices x")
	p.eventually(t, "the new config", func(r statusz.Report) bool { return r.Name == "invoices" })
}

func TestABadReloadKeepsTheOldConfigAndSaysSo(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ content, want string }{
		"when the file is invalid":           {"bad x", "name: must not be bad"},
		"when a change would need a restart": {"orders y", "needs: a change needs a restart"},
		"when the file is gone":              {"", "no such file"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "orders x")
			if tc.content == "" {
				if err := os.Remove(p.config); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, p.config, tc.content)
			}
			p.eventually(t, "the refusal", func(r statusz.Report) bool {
				return r.Name == "orders" && strings.Contains(r.ConfigError, tc.want)
			})
			if status, _ := p.get(t, "/readyz"); status != http.StatusOK {
				t.Errorf("readyz = %d: the old config still runs", status)
			}
			write(t, p.config, "mended x")
			p.eventually(t, "mended", func(r statusz.Report) bool { return r.Name == "mended" && r.ConfigError == "" })
		})
	}
}

func TestAChangedSecretWakesThePipeline(t *testing.T) {
	t.Parallel()
	p := start(t, "orders x")
	write(t, filepath.Join(p.secrets, "password"), "late")
	p.eventually(t, "woken", func(r statusz.Report) bool { return r.Generation == 1 })
}

func TestTheEndOfTheContextDrains(t *testing.T) {
	t.Parallel()
	p := start(t, "orders x")
	p.stop()
	if err := <-p.ended; err != nil {
		t.Fatalf("Run() = %v, want nil", err)
	}
	if !p.lane.released {
		t.Error("the pipeline was not asked to release")
	}
	if _, err := net.DialTimeout("tcp", strings.TrimPrefix(p.url, "http://"), time.Second); err == nil {
		t.Error("the port is still open")
	}
}

func TestAnInvalidConfigAtStartEndsTheProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config")
	write(t, path, "bad x")
	err := Run(t.Context(), Options[settings]{
		Log: quiet(), Registry: telemetry.NewRegistry(telemetry.Build{}), Watchdog: NewWatchdog(time.Now),
		ConfigPath: path, Listen: "127.0.0.1:0", Load: load,
	})
	if err == nil || !strings.Contains(err.Error(), path+": name: must not be bad") {
		t.Errorf("Run() = %v, want the file and the field", err)
	}
	if code := ExitCode(err); code != ExitFailed {
		t.Errorf("exit code = %d, want %d", code, ExitFailed)
	}
}

func TestAPortInUseIsSaidWithWhatToDo(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	err = Run(t.Context(), Options[settings]{Log: quiet(), Listen: taken.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "choose another with --listen") {
		t.Errorf("Run() = %v", err)
	}
}

// bubble returns a worker without endpoints and file events, for synctest.
func bubble(l *lane, dog *Watchdog) *worker[settings] {
	return &worker[settings]{
		Options:  Options[settings]{Log: quiet(), Watchdog: dog, DrainTimeout: DrainTimeout},
		pipeline: l, files: polling(),
	}
}

func TestADrainIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane(settings{})
		l.stuck = true
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := bubble(l, NewWatchdog(time.Now)).run(ctx, nil)
		if code := ExitCode(err); code != ExitDrainTimeout {
			t.Errorf("run() = %v, exit code %d, want %d", err, code, ExitDrainTimeout)
		}
		if took := time.Since(start); took != DrainTimeout {
			t.Errorf("it took %v, want %v", took, DrainTimeout)
		}
		select {
		case <-l.killed:
		default:
			t.Error("the pipeline was not killed")
		}
	})
}

func TestAWorkerThatDrainsIsNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane(settings{})
		l.stuck = true
		w := bubble(l, NewWatchdog(time.Now))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.run(ctx, nil) }()
		synctest.Wait()
		if err := w.ready(); err != nil {
			t.Errorf("ready() = %v before the drain", err)
		}
		cancel()
		synctest.Wait()
		if w.ready() == nil {
			t.Error("ready() = nil while draining")
		}
		if code := ExitCode(<-ended); code != ExitDrainTimeout {
			t.Errorf("exit code = %d, want %d", code, ExitDrainTimeout)
		}
	})
}

func TestTheWatchdogEndsAProcessWithAStuckLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane(settings{})
		dog := NewWatchdog(time.Now)
		dog.Step("lane 3", 10*time.Second)
		dog.Step("lane 4", 24*time.Hour)
		start := time.Now()
		err := bubble(l, dog).run(t.Context(), nil)
		var stalled *StallError
		if !errors.As(err, &stalled) || len(stalled.Loops) != 1 || !strings.Contains(err.Error(), "lane 3") {
			t.Errorf("run() = %v, want a stall of lane 3 alone", err)
		}
		if code := ExitCode(err); code != ExitStalled {
			t.Errorf("exit code = %d, want %d", code, ExitStalled)
		}
		if took := time.Since(start); took < 10*time.Second+StallTimeout || took > StallTimeout+30*time.Second {
			t.Errorf("it took %v", took)
		}
		if !l.released {
			t.Error("the loops that still move were not asked to release")
		}
	})
}

func TestALoopThatStepsIsNotStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dog := NewWatchdog(time.Now)
		for range 10 {
			dog.Step("lane", time.Second)
			<-time.After(StallTimeout)
			if err := dog.Stalled(); err != nil {
				t.Fatal(err)
			}
		}
		dog.Done("lane")
		<-time.After(time.Hour)
		if err := dog.Stalled(); err != nil {
			t.Errorf("Stalled() = %v after the loop ended", err)
		}
	})
}

func TestAPipelineThatEndsByItselfEndsTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLane(settings{})
		l.stuck = true
		close(l.killed) // Run returns at once
		err := bubble(l, NewWatchdog(time.Now)).run(t.Context(), nil)
		if code := ExitCode(err); code != ExitFailed {
			t.Errorf("run() = %v, exit code %d, want %d", err, code, ExitFailed)
		}
	})
}

func TestAReportStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	r := statusz.Report{Name: "orders", ConfigError: strings.Repeat("é", 40_000)}
	for range 200 {
		r.Conditions = append(r.Conditions, statusz.Condition{Type: "Ready", Message: strings.Repeat("x", 256)})
	}
	body, err := encodeReport(r)
	if err != nil || len(body) > statusz.MaxBytes {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	var got statusz.Report
	if err := json.Unmarshal(body, &got); err != nil || len(got.Conditions) != 200 || got.Version != statusz.Version {
		t.Errorf("%d conditions, version %d, %v", len(got.Conditions), got.Version, err)
	}
}
