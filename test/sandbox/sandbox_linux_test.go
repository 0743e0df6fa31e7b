package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/postrider/postrider/test/testkit"
)

// endVariable makes the test binary the program of a box. Its value says how the program ends.
const endVariable = "POSTRIDER_SANDBOX_END"

const (
	succeed = "succeed"
	fail    = "fail"
	wait    = "wait" // for a signal

	exitOfFail = 3
	littered   = "littered "
	patience   = 20 * time.Second
)

func TestMain(m *testing.M) {
	if box, ok := Inside(); ok {
		os.Exit(program(context.Background(), box, os.Getenv(endVariable)))
	}
	if os.Getenv(endVariable) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := Run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// program leaves one of everything behind, says so, and ends.
func program(ctx context.Context, box *Box, end string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if err := litter(ctx, box); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, littered+box.Dir)
	switch end {
	case succeed:
		return 0
	case wait:
		<-signals
		return 0
	default:
		return exitOfFail
	}
}

func litter(ctx context.Context, box *Box) error {
	orphan := exec.CommandContext(ctx, "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!")
	out, err := orphan.Output()
	if err != nil {
		return fmt.Errorf("start an orphan: %w", err)
	}
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		child := filepath.Join(dir, box.Cgroup, "child")
		if err := os.Mkdir(child, 0o755); err != nil {
			return err
		}
		if filepath.Base(dir) == "pids" || len(dirs) == 1 {
			if err := os.WriteFile(filepath.Join(child, "cgroup.procs"), out, 0o600); err != nil {
				return err
			}
		}
	}
	mount := filepath.Join(box.Dir, "mount")
	if err := os.Mkdir(mount, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, args := range [][]string{{"netns", "add", "box"}, {"link", "add", linkName, "type", "bridge"}} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	for _, dir := range []string{"/var/lib", "/var/log", "/run", os.TempDir()} {
		if err := os.WriteFile(filepath.Join(dir, box.Cgroup), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

const linkName = "postrider-box"

// start runs the test binary as a program in a box and returns when it has littered.
func start(t *testing.T, end string) (cmd *exec.Cmd, box *Box) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), endVariable+"="+end)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), littered) {
		t.Fatalf("the program said %q, %v", lines.Text(), cmd.Wait())
	}
	return cmd, boxIn(strings.TrimPrefix(lines.Text(), littered))
}

func TestAsRootNothingIsLeftOfABox(t *testing.T) {
	testkit.NeedsRoot(t)
	t.Parallel()
	cases := map[string]struct {
		end    string
		signal syscall.Signal // for the program outside
		code   int
	}{
		"the program succeeds":       {end: succeed},
		"the program fails":          {end: fail, code: exitOfFail},
		"Ctrl-C":                     {end: wait, signal: syscall.SIGINT},
		"make is ended by its owner": {end: wait, signal: syscall.SIGTERM},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, box := start(t, tc.end)
			if tc.signal != 0 {
				if err := cmd.Process.Signal(tc.signal); err != nil {
					t.Fatal(err)
				}
			}
			if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != tc.code {
				t.Errorf("exit code %d, want that of the program, %d", cmd.ProcessState.ExitCode(), tc.code)
			}
			for _, left := range append(processesOf(t, box), rest(t, box)...) {
				t.Errorf("left behind: %s", left)
			}
		})
	}
}

func TestAsRootTheNextRunTidiesUpAfterAKilledOne(t *testing.T) {
	testkit.NeedsRoot(t)
	t.Parallel()
	killed, box := start(t, wait)
	living, other := start(t, wait)
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	testkit.Eventually(t, patience, "the kernel has ended all processes of the killed box", func() bool {
		return len(processesOf(t, box)) == 0
	})

	next, _ := start(t, succeed)
	if err := next.Wait(); err != nil {
		t.Fatal(err)
	}

	for _, left := range rest(t, box) {
		t.Errorf("left behind: %s", left)
	}
	if len(processesOf(t, other)) == 0 {
		t.Error("a box in use was tidied away")
	}
	if err := living.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := living.Wait(); err != nil {
		t.Errorf("the box in use ended with %v", err)
	}
}

// A run that has made its folder and not yet locked it must not lose it to another run that tidies up.
func TestAsRootNobodyTidiesAwayABoxThatIsBeingMade(t *testing.T) {
	testkit.NeedsRoot(t)
	t.Setenv("TMPDIR", t.TempDir()) // nothing of others is tidied away here
	const runs, turns = 8, 100
	var all sync.WaitGroup
	for run := range runs {
		all.Go(func() {
			for turn := range turns {
				if err := sweep(); err != nil {
					t.Errorf("tidying up: %v", err)
				}
				box, unlock, err := create()
				if err != nil {
					t.Errorf("making a box: %v", err)
					continue
				}
				if _, err := os.Stat(box.temp()); err != nil {
					t.Errorf("a box in use: %v", err)
				}
				if killed := (run+turn)%2 == 0; !killed {
					if err := box.remove(); err != nil {
						t.Errorf("removing a box: %v", err)
					}
				}
				unlock()
			}
		})
	}
	all.Wait()
}

// processesOf finds the processes of a box by their environment.
func processesOf(t *testing.T, box *Box) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		if raw, err := os.ReadFile(file); err == nil && strings.Contains(string(raw), dirVariable+"="+box.Dir) {
			found = append(found, "process "+filepath.Dir(file))
		}
	}
	return found
}

// rest finds what else there is of a box.
func rest(t *testing.T, box *Box) []string {
	t.Helper()
	places := []string{
		box.Dir, "/sys/class/net/" + linkName, "/run/netns/box",
		filepath.Join("/var/lib", box.Cgroup), filepath.Join("/var/log", box.Cgroup), filepath.Join("/run", box.Cgroup),
		filepath.Join(os.TempDir(), box.Cgroup),
	}
	dirs, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		places = append(places, filepath.Join(dir, box.Cgroup))
	}
	var found []string
	for _, place := range places {
		if _, err := os.Lstat(place); err == nil {
			found = append(found, place)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), box.Dir) {
		found = append(found, "a mount")
	}
	return found
}

func TestOnlyTheProgramIsInside(t *testing.T) {
	t.Parallel()
	if _, ok := Inside(); ok {
		t.Error("this test is in a box, and nobody put it there")
	}
}
