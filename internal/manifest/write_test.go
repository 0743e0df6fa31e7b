package manifest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/postrider/postrider/internal/desired"
)

func TestWrittenFilesAreWhereAWorkerReadsThem(t *testing.T) {
	t.Parallel()
	set, problems := load(t, `apiVersion: v1
kind: Secret
metadata: {name: db, namespace: shop}
stringData: {username: relay, password: hunter2, other: unused}
`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	root := t.TempDir()
	refs := []desired.Reference{{
		Kind: desired.KindSecret, Name: "db", Keys: []string{"username", "password"}, Mount: "credentials/database",
	}}
	if err := set.WriteFiles("shop", refs, root); err != nil {
		t.Fatal(err)
	}

	for key, want := range map[string]string{"username": "relay", "password": "hunter2"} {
		file := filepath.Join(root, "credentials", "database", key)
		got, err := os.ReadFile(file)
		if err != nil || string(got) != want {
			t.Errorf("%s = %q, %v", key, got, err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s may be read by others: %v, %v", key, info.Mode(), err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "credentials", "database", "other")); err == nil {
		t.Error("a key that the reference does not name was written")
	}
	err := set.WriteFiles("shop", refs, filepath.Join(root, "credentials", "database", "username"))
	if err == nil {
		t.Error("a folder that cannot be made was accepted")
	}
}
