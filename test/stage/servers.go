package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/shop"
	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/sandbox"
)

// Servers are PostgreSQL and NATS, reachable from the cluster by the names in the samples and from here.
type Servers struct {
	Endpoints up.Endpoints
	// Superuser is PostgreSQL's connection string for the superuser.
	Superuser string
	// Close ends what runs here; nil means nothing does.
	Close func()
}

// Serve starts servers for a stage. What it returns beside an error is what runs.
type Serve func(ctx context.Context, s *Stage, set *manifest.Set) (Servers, error)

// natsSecrets are the users of the samples at NATS.
func natsSecrets() []string { return []string{"nats-orders", "nats-billing"} }

const (
	postgresPort = 5432
	natsPort     = 4222
)

// Local runs the servers within the sandbox, beside the cluster, and makes Services of them.
func Local(ctx context.Context, s *Stage, set *manifest.Set) (Servers, error) {
	var users []local.NATSUser
	for _, secret := range natsSecrets() {
		name, password, err := shop.Login(set, secret)
		if err != nil {
			return Servers{}, err
		}
		users = append(users, local.NATSUser{Name: name, Password: password})
	}
	var (
		postgres *local.Postgres
		nats     *local.NATS
		group    errgroup.Group
	)
	group.Go(func() (err error) {
		postgres, err = local.StartPostgres(ctx, local.PostgresConfig{})
		return err
	})
	group.Go(func() (err error) {
		nats, err = local.StartNATS(ctx, local.NATSConfig{Users: users})
		return err
	})
	err := group.Wait()
	servers := Servers{Close: func() {
		ctx := context.WithoutCancel(ctx)
		if postgres != nil {
			_ = postgres.Stop(ctx) // it ends with the sandbox anyway
		}
		if nats != nil {
			_ = nats.Stop(ctx)
		}
	}}
	if err != nil {
		return servers, err
	}
	servers.Superuser = postgres.URL("postgres")
	servers.Endpoints = up.Endpoints{
		Postgres: net.JoinHostPort(postgres.Host(), strconv.Itoa(postgres.Port())),
		NATS:     net.JoinHostPort(nats.Host(), strconv.Itoa(nats.Port())),
	}
	for port, server := range map[int]string{postgresPort: servers.Endpoints.Postgres, natsPort: servers.Endpoints.NATS} {
		if err := forward(ctx, net.JoinHostPort(sandbox.Address, strconv.Itoa(port)), server); err != nil {
			return servers, err
		}
	}
	var services strings.Builder
	for name, port := range map[string]int{"orders-db": postgresPort, "billing-db": postgresPort, "nats": natsPort} {
		fmt.Fprintf(&services, service, name, Namespace, port, sandbox.Address)
	}
	return servers, s.apply(ctx, services.String())
}

// service is a Service of a server that is no Pod: name, namespace, port, address.
const service = `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s}
spec: {ports: [{port: %[3]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: %[3]d}]
endpoints: [{addresses: [%[4]s], conditions: {ready: true}}]
---
`

// forward passes connections on to a server that listens on loopback, where no Pod can reach it. It ends with ctx.
func forward(ctx context.Context, from, to string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", from)
	if err != nil {
		return fmt.Errorf("listen for the cluster: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go join(ctx, client, to)
			}
		}
	}()
	return nil
}

// join copies both ways until both sides have said all.
func join(ctx context.Context, client net.Conn, to string) {
	defer func() { _ = client.Close() }()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return // the client sees its connection closed
	}
	defer func() { _ = server.Close() }()
	var group errgroup.Group
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		group.Go(func() error {
			_, err := io.Copy(to, from)
			if half, ok := to.(*net.TCPConn); ok {
				err = errors.Join(err, half.CloseWrite())
			}
			return err
		})
	}
	_ = group.Wait() // the two know what they miss
}

// Prepare makes ready, outside, what a stage in a sandbox needs, where no network is.
func Prepare(ctx context.Context, out io.Writer) error {
	if err := cluster.Prepare(ctx, out); err != nil {
		return err
	}
	postgres, err := local.StartPostgres(ctx, local.PostgresConfig{}) // which fetches it
	if err != nil {
		return err
	}
	return postgres.Stop(ctx)
}

// InBox sets a stage up in a cluster within a sandbox.
func InBox(ctx context.Context, box *sandbox.Box, c *cluster.Cluster, out io.Writer) (*Stage, error) {
	root, err := cluster.Root(ctx)
	if err != nil {
		return nil, err
	}
	postrider, err := cluster.Binary(ctx, "postrider")
	if err != nil {
		return nil, err
	}
	return SetUp(ctx, Config{Root: root, Dir: box.Dir, Kubectl: c.Kubectl, Postrider: postrider, Out: out}, Local)
}
