package testkit

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// shrinkTime is for what ends by itself on a busy machine.
const shrinkTime = time.Minute

// Footprint notes how many goroutines and open files this process has, sockets among them, and returns what waits until
// it has no more than a few beyond that. Other tests must not run meanwhile. Files are counted on Linux only.
func Footprint(t testing.TB) (shrinks func(few int)) {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	return func(few int) {
		t.Helper()
		var moreGoroutines, moreFiles int
		defer func() {
			if t.Failed() {
				t.Logf("%d goroutines and %d open files more than before", moreGoroutines, moreFiles)
			}
		}()
		Eventually(t, shrinkTime, "the process holds as much as before", func() bool {
			moreGoroutines, moreFiles = runtime.NumGoroutine()-goroutines, openFiles(t)-files
			return moreGoroutines <= few && moreFiles <= few
		})
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("counting open files: %v", err)
	}
	return len(open)
}
