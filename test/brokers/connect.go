package brokers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/local"
)

const (
	// ConnectVersion is that of Kafka Connect, one that Debezium is made for.
	ConnectVersion = "4.3.1"
	// DebeziumVersion is that of Debezium's connector for PostgreSQL.
	DebeziumVersion = "3.6.1.Final"

	connectPoll = 100 * time.Millisecond
)

// connectProperties are a standalone worker's: keys and values pass as they are, and offsets are kept in a file.
const connectProperties = `bootstrap.servers=%s
listeners=http://%s
plugin.path=%s
plugin.discovery=hybrid_warn
offset.storage.file.filename=%s
offset.flush.interval.ms=1000
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
`

// connectInstall returns the cached folder with Kafka Connect in lib and Debezium's connector in plugins, and fetches both
// first where it is not there.
func connectInstall(ctx context.Context) (string, error) {
	dir, err := local.Cached(ctx, "debezium-"+DebeziumVersion+"-connect-"+ConnectVersion, fetchConnect)
	if err != nil {
		return "", fmt.Errorf("getting Debezium %s: %w", DebeziumVersion, err)
	}
	return dir, nil
}

func fetchConnect(ctx context.Context, dir string) error {
	project := pom("debezium", "org.apache.kafka:connect-runtime:"+ConnectVersion,
		"io.debezium:debezium-connector-postgres:"+DebeziumVersion)
	for name, content := range map[string]string{pomFile: project, loggingFile: javaLogging} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	lib, plugin := filepath.Join(dir, "lib"), filepath.Join(dir, "plugins", "debezium")
	if err := fetchJars(ctx, dir, lib); err != nil {
		return err
	}
	if err := os.MkdirAll(plugin, 0o700); err != nil {
		return fmt.Errorf("making the folder of the connector: %w", err)
	}
	// Connect loads a connector apart from itself.
	jars, err := os.ReadDir(lib)
	if err != nil {
		return fmt.Errorf("listing the jars: %w", err)
	}
	for _, jar := range jars {
		if strings.HasPrefix(jar.Name(), "debezium-") || strings.HasPrefix(jar.Name(), "postgresql-") {
			if err := os.Rename(filepath.Join(lib, jar.Name()), filepath.Join(plugin, jar.Name())); err != nil {
				return fmt.Errorf("moving the connector: %w", err)
			}
		}
	}
	return nil
}

// Connect is a running standalone worker of Kafka Connect that has Debezium's connector for PostgreSQL.
type Connect struct {
	server

	port int
}

// StartConnect starts a worker for the Kafka at the address and returns when it takes requests.
func StartConnect(ctx context.Context, kafka string) (*Connect, error) {
	java, err := findJava(ctx)
	if err != nil {
		return nil, err
	}
	install, err := connectInstall(ctx)
	if err != nil {
		return nil, err
	}
	for range portTries {
		var ports []int
		if ports, err = freePorts(ctx, 1); err != nil {
			return nil, err
		}
		c := &Connect{port: ports[0]}
		if err = c.launch(ctx, java, install, kafka); err == nil {
			if err = c.answers(ctx); err == nil {
				return c, nil
			}
			return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
		}
		if !portTaken(err) {
			break
		}
	}
	return nil, fmt.Errorf("starting Kafka Connect: %w", err)
}

func (c *Connect) launch(ctx context.Context, java, install, kafka string) (err error) {
	if c.dir, err = os.MkdirTemp("", "postrider-connect-"); err != nil {
		return fmt.Errorf("making the folder of Kafka Connect: %w", err)
	}
	properties := filepath.Join(c.dir, "worker.properties")
	content := fmt.Sprintf(connectProperties, kafka, address(c.port), filepath.Join(install, "plugins"),
		filepath.Join(c.dir, "offsets"))
	if err := os.WriteFile(properties, []byte(content), 0o600); err != nil {
		return errors.Join(fmt.Errorf("writing the worker's properties: %w", err), os.RemoveAll(c.dir))
	}
	// Its own start script gives it twice the heap, and the rest as here: nothing.
	return c.start(ctx, c.spec(java, []string{
		"-Xmx1g", "-Dlog4j2.configurationFile=" + filepath.Join(install, loggingFile),
		"-cp", filepath.Join(install, "lib", "*"), "org.apache.kafka.connect.cli.ConnectStandalone", properties,
	}, nil, c.port))
}

// answers waits until the worker answers requests: it takes connections before.
func (c *Connect) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it does not answer"))
	defer cancel()
	client := http.Client{Timeout: stopTimeout}
	tick := time.NewTicker(connectPoll)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/connectors", http.NoBody)
		if err != nil {
			return fmt.Errorf("asking Kafka Connect: %w", err)
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close() // its status is enough
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-c.Lost():
			return fmt.Errorf("starting Kafka Connect: %w", c.Err())
		case <-ctx.Done():
			return fmt.Errorf("starting Kafka Connect: %w", context.Cause(ctx))
		}
	}
}

// URL is that of the worker's REST interface.
func (c *Connect) URL() string { return "http://" + address(c.port) }

// Process is the worker's process id.
func (c *Connect) Process() int { return c.pid }

// Err returns why the worker has ended by itself, nil while it has not.
func (c *Connect) Err() error { return c.keeper.Err() }

// Stop ends the worker for good and removes its folder.
func (c *Connect) Stop(ctx context.Context) error {
	if err := c.keeper.Close(ctx); err != nil {
		return fmt.Errorf("stopping Kafka Connect: %w", err)
	}
	return nil
}
