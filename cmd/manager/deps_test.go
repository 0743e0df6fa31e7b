package main

import (
	"os/exec"
	"strings"
	"testing"
)

// The planes: what each process links is what it can do at all.
func TestWhatTheCommandsLink(t *testing.T) {
	t.Parallel()
	kubernetes := []string{
		"k8s.io/",
		"sigs.k8s.io/",
		"github.com/postrider/postrider/api",
		"github.com/postrider/postrider/internal/controller",
	}
	cases := map[string]struct{ never, always []string }{
		"manager": {
			never: []string{
				"github.com/jackc/",
				"github.com/lib/pq",
				"github.com/nats-io/",
				"github.com/twmb/",
				"github.com/rabbitmq/",
				"github.com/postrider/postrider/internal/postgres",
				"github.com/postrider/postrider/internal/broker",
				"github.com/postrider/postrider/internal/relay",
				"github.com/postrider/postrider/internal/consumer",
			},
			always: []string{"sigs.k8s.io/controller-runtime"},
		},
		"relay":    {never: kubernetes, always: []string{"github.com/jackc/pgx/v5"}},
		"consumer": {never: kubernetes, always: []string{"github.com/jackc/pgx/v5"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../"+name).Output()
			if err != nil {
				t.Fatalf("go list: %v", err)
			}
			linked := strings.Fields(string(out))
			for _, prefix := range tc.never {
				for _, p := range linked {
					if strings.HasPrefix(p, prefix) {
						t.Errorf("%s links %s", name, p)
					}
				}
			}
			for _, needed := range tc.always { // else the list says nothing
				if !strings.Contains(string(out), needed+"\n") {
					t.Errorf("%s does not link %s", name, needed)
				}
			}
		})
	}
}
