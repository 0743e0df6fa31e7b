package mount_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/internal/mount"
)

// longest is within what anything here takes.
const longest = time.Minute

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// server knows which password works.
type server struct {
	file, works string
	tries       int
	refusals    int
}

func (s *server) prove(context.Context) error {
	s.tries++
	if got, err := os.ReadFile(s.file); err != nil || string(got) != s.works {
		return errors.New("refused")
	}
	return nil
}

func (s *server) refused(context.Context, error) { s.refusals++ }

// within returns whether the follower asked for new connections in time.
func within(t *testing.T, f *mount.Follower, limit time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := f.Next(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Next() = %v, want the context's error", err)
	}
	return err == nil
}

func TestConnectionsAreRenewedOnlyForFilesThatWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{file: filepath.Join(t.TempDir(), "password"), works: "one"}
		put(t, s.file, "one")
		f := mount.NewFollower([]string{filepath.Dir(s.file)}, s.prove, s.refused)
		if within(t, f, longest) || s.tries != 0 {
			t.Fatalf("unchanged files were taken, or tried (%d)", s.tries)
		}

		put(t, s.file, "two") // ahead of the server
		if within(t, f, longest) {
			t.Error("files that do not work were taken")
		}
		if s.refusals != 1 {
			t.Errorf("%d refusals were told of one content, want 1", s.refusals)
		}
		if s.tries < 5 || s.tries > 12 {
			t.Errorf("%d tries in %v, want them often at first and ever more seldom", s.tries, longest)
		}
		s.works = "two" // the server follows, no file changes any more
		if !within(t, f, longest) {
			t.Error("files that work by now were not taken")
		}
		tries := s.tries
		if within(t, f, longest) || s.tries != tries {
			t.Error("files in use were taken again, or tried")
		}

		put(t, s.file, "wrong")
		if within(t, f, 30*time.Second) {
			t.Error("files that do not work were taken")
		}
		s.works = "three"
		put(t, s.file, "three")
		if !within(t, f, 3*time.Second) {
			t.Error("other files than the refused were not tried at once")
		}
	})
}

// docs/secrets.md says when files are tried again that the server takes later.
func TestFilesThatDoNotWorkAreTriedEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "password")
		put(t, file, "one")
		began := time.Now()
		var tries []int
		f := mount.NewFollower([]string{file}, func(context.Context) error {
			tries = append(tries, int(time.Since(began).Seconds()))
			return errors.New("refused")
		}, func(context.Context, error) {})
		put(t, file, "two")
		if within(t, f, 45*time.Second) {
			t.Error("files that do not work were taken")
		}
		if want := []int{2, 6, 12, 22, 32, 42}; !slices.Equal(tries, want) {
			t.Errorf("tried after %v seconds, want %v", tries, want)
		}
	})
}

func TestFilesThatGoBackToWhatIsInUseChangeNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{file: filepath.Join(t.TempDir(), "password"), works: "one"}
		put(t, s.file, "one")
		f := mount.NewFollower([]string{s.file}, s.prove, s.refused)
		put(t, s.file, "two")
		if within(t, f, 10*time.Second) {
			t.Error("files that do not work were taken")
		}
		put(t, s.file, "one")
		tries := s.tries
		if within(t, f, longest) || s.tries != tries {
			t.Error("connections were to be renewed that are as the files say")
		}
	})
}

// What could not connect has no connection that would have to be replaced.
func TestFilesThatWereMissingAreTakenAsInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{file: filepath.Join(t.TempDir(), "password"), works: "one"}
		f := mount.NewFollower([]string{s.file}, s.prove, s.refused)
		put(t, s.file, "one")
		if within(t, f, longest) || s.tries != 0 {
			t.Error("connections were to be renewed that nobody can have made")
		}
		if err := os.Remove(s.file); err != nil {
			t.Fatal(err)
		}
		if within(t, f, longest) || s.tries != 0 {
			t.Error("connections were to be renewed with a file that is missing")
		}
		s.works = "two"
		put(t, s.file, "two")
		if !within(t, f, longest) {
			t.Error("the new file was not taken")
		}
	})
}

func TestAProofThatGetsNoAnswerIsARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "ca.crt")
		put(t, file, "one")
		answers, refusals := false, 0
		f := mount.NewFollower([]string{file}, func(ctx context.Context) error {
			if !answers {
				<-ctx.Done()
				answers = true
			}
			return ctx.Err()
		}, func(context.Context, error) { refusals++ })
		put(t, file, "one and two")
		if !within(t, f, longest) || refusals != 1 {
			t.Errorf("a server that hangs once kept the new file out, or was not told of (%d)", refusals)
		}
	})
}

func TestAnEndedContextEndsTheWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	f := mount.NewFollower([]string{dir}, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}, func(context.Context, error) { t.Error("a try that we ended ourselves is told as a refusal") })
	put(t, filepath.Join(dir, "password"), "two")
	if err := f.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next() = %v", err)
	}
}
