package stage

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/shop"
)

// Remote runs the servers as Pods, with images that the cluster fetches, and reaches them through port-forwards.
func Remote(ctx context.Context, s *Stage, set *manifest.Set) (servers Servers, err error) {
	password := rand.Text()
	config, err := natsConfig(set)
	if err != nil {
		return servers, err
	}
	secret := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: quickstart-servers, namespace: %s}\n"+
		"stringData: {postgres-password: %q, nats.conf: %q}\n", Namespace, password, config)
	if err := s.apply(ctx, secret); err != nil {
		return servers, err
	}
	if err := s.Do(
		ctx,
		"apply",
		"-f",
		filepath.Join(s.cfg.Root, "config/quickstart/servers/servers.yaml"),
	); err != nil {
		return servers, err
	}
	var ends []func()
	servers.Close = func() {
		for _, end := range ends {
			end()
		}
	}
	for deployment, at := range map[string]struct {
		port  int
		local *string
	}{
		"quickstart-postgres": {postgresPort, &servers.Endpoints.Postgres},
		"quickstart-nats":     {natsPort, &servers.Endpoints.NATS},
	} {
		s.say("waiting for %s", deployment)
		if err := s.RolledOut(ctx, Namespace, deployment); err != nil {
			return servers, errors.Join(err, s.tell(ctx, deployment))
		}
		end, err := s.portForward(ctx, deployment, at.port, at.local)
		if err != nil {
			return servers, err
		}
		ends = append(ends, end)
	}
	servers.Superuser = (&url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password), Host: servers.Endpoints.Postgres, Path: "/postgres",
	}).String()
	return servers, nil
}

// tell shows what a person would look at when a server does not start.
func (s *Stage) tell(ctx context.Context, deployment string) error {
	pods := "--selector=app=" + deployment
	return errors.Join(
		s.Do(ctx, "--namespace", Namespace, "get", "pods", pods),
		s.Do(ctx, "--namespace", Namespace, "get", "events", "--field-selector=type!=Normal"),
		s.Do(ctx, "--namespace", Namespace, "logs", pods, "--tail=20"),
	)
}

func natsConfig(set *manifest.Set) (string, error) {
	var users []string
	for _, secret := range natsSecrets() {
		name, password, err := shop.Login(set, secret)
		if err != nil {
			return "", err
		}
		users = append(users, fmt.Sprintf("{user: %q, password: %q}", name, password))
	}
	return "jetstream {store_dir: /tmp/jetstream}\nauthorization {users: [" + strings.Join(users, ", ") + "]}\n", nil
}

var forwarding = regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) `)

// portForward opens a port here that leads to a Deployment's, until end is called.
func (s *Stage) portForward(ctx context.Context, deployment string, port int, local *string) (end func(), err error) {
	cmd := s.cfg.Kubectl(context.WithoutCancel(ctx), "--namespace", Namespace, "port-forward", "--address=127.0.0.1",
		"deployment/"+deployment, fmt.Sprintf(":%d", port))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us; it is needed a moment longer
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("read kubectl port-forward: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kubectl port-forward: %w", err)
	}
	end = func() { stop(cmd) }
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if found := forwarding.FindStringSubmatch(lines.Text()); found != nil {
			*local = found[1]
			go drain(lines)
			return end, nil
		}
	}
	end()
	return nil, fmt.Errorf("kubectl port-forward to %s ended", deployment)
}

// drain reads on, so that kubectl can go on printing.
func drain(lines *bufio.Scanner) {
	for lines.Scan() { // what it says of each connection
	}
}

func stop(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
}

// Vacant refuses a cluster in which something is that a stage would change.
func Vacant(ctx context.Context, cfg Config) error {
	s := &Stage{cfg: cfg}
	for _, resource := range []string{
		"namespace/" + Namespace, "namespace/" + System, "customresourcedefinition/outboxrelays.postrider.dev",
	} {
		found, err := s.Read(ctx, "get", resource, "--ignore-not-found", "--output=name")
		if err != nil {
			return err
		}
		if found != "" {
			return fmt.Errorf(
				"the cluster has a %s already, and the quick start would change it: use another cluster",
				found,
			)
		}
	}
	return nil
}

// TakeAway removes all that a stage has put into a cluster.
func TakeAway(ctx context.Context, cfg Config) error {
	s := &Stage{cfg: cfg}
	return errors.Join(
		s.Do(ctx, "delete", "namespace", Namespace, "--ignore-not-found"),
		s.Do(ctx, "delete", "--ignore-not-found", "-f", filepath.Join(cfg.Root, "dist", "install.yaml")),
	)
}
