package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnImageIsWhatTheOCIFormatSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"relay": 0o755, "roots": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	image := Image{
		Reference: "docker.io/library/postrider:dev", User: "65532:65532", Entrypoint: []string{"/usr/local/bin/relay"},
		Files: map[string]string{
			"usr/local/bin/relay": filepath.Join(dir, "relay"), "etc/roots": filepath.Join(dir, "roots"),
		},
	}
	raw := written(t, image)
	if !bytes.Equal(raw, written(t, image)) {
		t.Error("the same files made different images")
	}
	layout := untar(t, raw)
	for name, content := range layout {
		if digest, ok := strings.CutPrefix(name, blobs); ok && digest != sumOf(content) {
			t.Errorf("%s holds another blob", name)
		}
	}

	read := readImage(t, layout)
	want := readBack{
		Name: image.Reference, User: image.User, Entrypoint: image.Entrypoint, DiffIDs: read.Layers,
		Layers: []string{read.Layers[0]}, // one
		Files: map[string]string{
			"etc/": "", "etc/roots": "content of roots",
			"usr/": "", "usr/local/": "", "usr/local/bin/": "", "usr/local/bin/relay": "content of relay",
		},
	}
	if diff := cmp.Diff(want, read); diff != "" {
		t.Errorf("the image (-want +got):\n%s", diff)
	}
}

func written(t *testing.T, image Image) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := image.WriteFile(file); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// readBack is what a runtime reads of an image.
type readBack struct {
	Name, User      string
	Entrypoint      []string
	Layers, DiffIDs []string // digests, compressed and not
	Files           map[string]string
}

// readImage follows an image's references from its index on.
func readImage(t *testing.T, layout map[string][]byte) readBack {
	t.Helper()
	var index struct{ Manifests []descriptor }
	decode(t, layout["index.json"], &index)
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, layout[blob(index.Manifests[0])], &manifest)
	var config struct {
		Config struct {
			Entrypoint []string
			User       string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, layout[blob(manifest.Config)], &config)
	read := readBack{
		Name: index.Manifests[0].Annotations["io.containerd.image.name"], User: config.Config.User,
		Entrypoint: config.Config.Entrypoint, DiffIDs: config.RootFS.DiffIDs, Files: make(map[string]string),
	}
	for _, layer := range manifest.Layers {
		read.Layers = append(read.Layers, layer.Digest)
		for name, content := range untar(t, layout[blob(layer)]) {
			read.Files[name] = string(content)
		}
	}
	return read
}

// TestTheImageIsTheDockerfiles compares what we pack with what the Dockerfile says.
func TestTheImageIsTheDockerfiles(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	image := imagesIn("bin")["postrider"]
	word := func(pattern string) string {
		found := regexp.MustCompile(`(?m)` + pattern).FindSubmatch(raw)
		if found == nil {
			t.Fatalf("the Dockerfile has no %s", pattern)
		}
		return string(found[1])
	}
	if want := word(`^USER (.*)$`); image.User != want {
		t.Errorf("user %q, want %q", image.User, want)
	}
	var entrypoint []string
	decode(t, []byte(word(`^ENTRYPOINT (.*)$`)), &entrypoint)
	if !cmp.Equal(image.Entrypoint, entrypoint) {
		t.Errorf("entrypoint %q, want %q", image.Entrypoint, entrypoint)
	}
	for from := range strings.FieldsSeq(word(`^COPY --from=build (/out/.*) /usr/local/bin/$`)) {
		name := filepath.Base(from)
		if image.Files["usr/local/bin/"+name] != filepath.Join("bin", name) {
			t.Errorf("%s is not in the image", name)
		}
		if !strings.Contains(word(`-o /out/ (.*)$`), "./cmd/"+name) {
			t.Errorf("the Dockerfile does not build %s", name)
		}
	}
}

func untar(t *testing.T, raw []byte) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func blob(d descriptor) string { return strings.Replace(d.Digest, "sha256:", blobs, 1) }
