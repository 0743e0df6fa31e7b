package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupPatience is how long the kernel may take to see that a group is empty.
	cgroupPatience = 10 * time.Second
	cgroupPoll     = 20 * time.Millisecond
)

// hierarchies returns where control groups are made: one folder with version 2, one a controller with version 1.
func hierarchies() ([]string, error) {
	if isCgroup(cgroupRoot) {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("look for control groups: %w", err)
	}
	var found []string
	for _, e := range entries {
		dir := filepath.Join(cgroupRoot, e.Name())
		if e.IsDir() && isCgroup(dir) { // a link is no folder
			found = append(found, dir)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no control groups at %s", ErrForbidden, cgroupRoot)
	}
	return found, nil
}

func isCgroup(dir string) bool {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return false
	}
	return s.Type == unix.CGROUP2_SUPER_MAGIC || s.Type == unix.CGROUP_SUPER_MAGIC
}

func makeCgroups(name string) error {
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return fmt.Errorf("%w: make a control group: %w", ErrForbidden, err)
		}
	}
	return nil
}

// removeCgroups removes the group and all below it from every hierarchy.
func removeCgroups(name string) error {
	dirs, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeCgroup(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// removeCgroup removes a group, the innermost first. The processes in it have ended; the kernel may not know yet.
func removeCgroup(dir string) error {
	deadline := time.NewTimer(cgroupPatience)
	defer deadline.Stop()
	poll := time.NewTicker(cgroupPoll)
	defer poll.Stop()
	for {
		err := removeTree(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-deadline.C:
			return fmt.Errorf("remove a control group: %w", err)
		case <-poll.C:
		}
	}
}

func removeTree(dir string) error {
	var groups []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, g := range slices.Backward(groups) {
		if err := unix.Rmdir(g); err != nil {
			return &fs.PathError{Op: "rmdir", Path: g, Err: err}
		}
	}
	return nil
}
