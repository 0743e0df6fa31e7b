package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image is a container image of a few files that need nothing else, such as static binaries.
type Image struct {
	// Reference is its whole name, with host and tag, as docker.io/library/postrider:dev.
	Reference string
	// Files are the files it holds: paths in the image, without the slash in front, to files here.
	Files map[string]string
	// Entrypoint and User are those of the Dockerfile.
	Entrypoint []string
	User       string
}

// The words of the OCI image format.
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	blobs         = "blobs/sha256/"
)

// descriptor points to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// WriteFile writes the image as a tar of the OCI layout, which `ctr image import`, podman and docker read. The same
// files make the same bytes.
func (i Image) WriteFile(name string) (err error) {
	layer, err := os.CreateTemp("", "postrider-layer-")
	if err != nil {
		return fmt.Errorf("make a file for a layer: %w", err)
	}
	defer func() { err = errors.Join(err, layer.Close(), os.Remove(layer.Name())) }()
	sum := sha256.New()
	if err := i.writeLayer(io.MultiWriter(layer, sum)); err != nil {
		return fmt.Errorf("pack the layer of %s: %w", i.Reference, err)
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("pack the layer of %s: %w", i.Reference, err)
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("pack the layer of %s: %w", i.Reference, err)
	}
	out, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := i.writeLayout(out, layer, size, hex.EncodeToString(sum.Sum(nil))); err != nil {
		return fmt.Errorf("write %s: %w", i.Reference, err)
	}
	return nil
}

// writeLayer packs the files, their folders first.
func (i Image) writeLayer(out io.Writer) error {
	w := tar.NewWriter(out)
	made := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		for _, dir := range parents(name) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
				return err
			}
		}
		if err := addFile(w, name, i.Files[name]); err != nil {
			return err
		}
	}
	return w.Close()
}

// parents are the folders of a path, the outermost first.
func parents(name string) []string {
	var dirs []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

func addFile(w *tar.Writer, name, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size()}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

func (i Image) writeLayout(out io.Writer, layer io.Reader, size int64, digest string) error {
	p := platform{Architecture: runtime.GOARCH, OS: "linux"}
	w := tar.NewWriter(out)
	if err := w.WriteHeader(fileHeader(blobs+digest, size)); err != nil {
		return err
	}
	if _, err := io.Copy(w, layer); err != nil {
		return err
	}
	config, err := addBlob(w, mediaConfig, map[string]any{
		"architecture": p.Architecture, "os": p.OS,
		"config": map[string]any{"Entrypoint": i.Entrypoint, "User": i.User},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := addBlob(w, mediaManifest, map[string]any{
		"schemaVersion": 2, "mediaType": mediaManifest, "config": config,
		"layers": []descriptor{{MediaType: mediaLayer, Digest: "sha256:" + digest, Size: size}},
	})
	if err != nil {
		return err
	}
	manifest.Platform = &p
	manifest.Annotations = map[string]string{
		"io.containerd.image.name": i.Reference, "org.opencontainers.image.ref.name": tagOf(i.Reference),
	}
	if err := addJSON(w, "index.json", map[string]any{
		"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []descriptor{manifest},
	}); err != nil {
		return err
	}
	if err := addJSON(w, "oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	return w.Close()
}

func tagOf(reference string) string { return reference[strings.LastIndex(reference, ":")+1:] }

func addBlob(w *tar.Writer, media string, content any) (descriptor, error) {
	raw, err := json.Marshal(content)
	if err != nil {
		return descriptor{}, err
	}
	sum := sha256.Sum256(raw)
	digest := hex.EncodeToString(sum[:])
	return descriptor{MediaType: media, Digest: "sha256:" + digest, Size: int64(len(raw))},
		addRaw(w, blobs+digest, raw)
}

func addJSON(w *tar.Writer, name string, content any) error {
	raw, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return addRaw(w, name, raw)
}

func addRaw(w *tar.Writer, name string, raw []byte) error {
	if err := w.WriteHeader(fileHeader(name, int64(len(raw)))); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(raw))
	return err
}

func fileHeader(name string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}
}
