package manifest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/postrider/postrider/internal/desired"
)

// WriteFiles writes what the references name below root, where a worker's Pod would have it mounted. Only this user
// can read it.
func (s *Set) WriteFiles(namespace string, refs []desired.Reference, root string) error {
	for _, ref := range refs {
		dir := ref.Directory(root)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("write the files of %s %s: %w", ref.Kind, ref.Name, err)
		}
		for key, value := range s.Files(namespace, ref) {
			if err := os.WriteFile(filepath.Join(dir, key), value.Reveal(), 0o600); err != nil {
				return fmt.Errorf("write the files of %s %s: %w", ref.Kind, ref.Name, err)
			}
		}
	}
	return nil
}
