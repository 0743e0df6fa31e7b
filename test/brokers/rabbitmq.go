package brokers

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/local/keeper"
)

// The user that a fresh RabbitMQ has, who may do everything.
const (
	rabbitUser     = "guest"
	rabbitPassword = "guest"
)

// rabbitPackages are RabbitMQ and the parts of Erlang that it needs, by Debian's names.
var rabbitPackages = []string{ //nolint:gochecknoglobals // a constant
	"rabbitmq-server", "erlang-base", "erlang-asn1", "erlang-crypto", "erlang-eldap", "erlang-ftp", "erlang-inets",
	"erlang-mnesia", "erlang-os-mon", "erlang-parsetools", "erlang-public-key", "erlang-runtime-tools", "erlang-snmp",
	"erlang-ssl", "erlang-syntax-tools", "erlang-tftp", "erlang-tools", "erlang-xmerl",
}

// rabbitFiles are the programs of a RabbitMQ and its Erlang.
type rabbitFiles struct {
	server string // rabbitmq-server
	epmd   string
	call   string // erl_call
	path   string // goes before PATH; empty where Erlang is on it
}

// rabbitInstall returns an installed RabbitMQ, or one unpacked into the cache.
func rabbitInstall(ctx context.Context) (rabbitFiles, error) {
	if f, ok := installedRabbit(); ok {
		return f, nil
	}
	if !canUnpack() {
		return rabbitFiles{}, &MissingError{
			"RabbitMQ, for the tests,",
			"apt-get install rabbitmq-server, or brew install rabbitmq",
		}
	}
	dir, err := local.Cached(ctx, "rabbitmq-"+distribution(), fetchRabbit)
	if err != nil {
		return rabbitFiles{}, fmt.Errorf("getting RabbitMQ for the tests: %w", err)
	}
	bin := filepath.Join(dir, "usr/lib/erlang/bin")
	return rabbitFiles{
		server: filepath.Join(dir, "usr/lib/rabbitmq/bin/rabbitmq-server"),
		epmd:   filepath.Join(bin, "epmd"), call: filepath.Join(bin, "erl_call"), path: bin,
	}, nil
}

// installedRabbit finds the programs of an installed RabbitMQ. Debian's own wrapper on PATH changes the user: what it
// wraps is taken instead.
func installedRabbit() (rabbitFiles, bool) {
	var f rabbitFiles
	for _, program := range []struct {
		path  *string
		names []string
	}{
		{&f.server, []string{"/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"}},
		{&f.epmd, []string{"epmd"}},
		{&f.call, []string{"erl_call", "/usr/lib/erlang/bin/erl_call"}},
	} {
		for _, name := range program.names {
			if found, err := exec.LookPath(name); err == nil && *program.path == "" {
				*program.path = found
			}
		}
		if *program.path == "" {
			return rabbitFiles{}, false
		}
	}
	return f, true
}

// fetchRabbit unpacks RabbitMQ and Erlang into dir.
func fetchRabbit(ctx context.Context, dir string) error {
	if err := unpack(ctx, dir, rabbitPackages); err != nil {
		return err
	}
	return moveErlang(filepath.Join(dir, "usr/lib/erlang"))
}

var erlangRoot = regexp.MustCompile(`(?m)^(\s*)ROOTDIR=/usr/lib/erlang$`)

// moveErlang has Erlang's scripts find its files where they are, instead of where the package would be installed.
func moveErlang(root string) error {
	for pattern, up := range map[string]string{"bin/erl": "..", "bin/start": "..", "erts-*/bin/erl": "../..", "erts-*/bin/start": "../.."} {
		scripts, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(scripts) == 0 {
			return fmt.Errorf("the packages hold no %s", pattern)
		}
		for _, script := range scripts {
			text, err := os.ReadFile(script)
			if err != nil {
				return fmt.Errorf("moving Erlang: %w", err)
			}
			text = erlangRoot.ReplaceAll(text, []byte(`${1}ROOTDIR=$$(cd "$$(dirname "$$0")/`+up+`" && pwd)`))
			if err := os.WriteFile(script, text, 0o700); err != nil {
				return fmt.Errorf("moving Erlang: %w", err)
			}
		}
	}
	return nil
}

// RabbitMQConfig says how a RabbitMQ is run.
type RabbitMQConfig struct {
	// Settings are lines added to rabbitmq.conf.
	Settings []string
}

// RabbitMQ is a running node of RabbitMQ.
type RabbitMQ struct {
	server

	install rabbitFiles
	ports   rabbitPorts
	pki     PKI
	names   *keeper.Keeper // keeps epmd, which tells nodes' ports
	asking  sync.Mutex     // held while Eval runs
}

type rabbitPorts struct{ amqp, amqps, epmd, distribution int }

// StartRabbitMQ starts a node and returns when it takes connections.
func StartRabbitMQ(ctx context.Context, cfg RabbitMQConfig) (*RabbitMQ, error) {
	install, err := rabbitInstall(ctx)
	if err != nil {
		return nil, err
	}
	for range portTries {
		var r *RabbitMQ
		if r, err = startRabbit(ctx, install, cfg); !portTaken(err) {
			return r, err
		}
	}
	return nil, err
}

func startRabbit(ctx context.Context, install rabbitFiles, cfg RabbitMQConfig) (_ *RabbitMQ, err error) {
	ports, err := freePorts(ctx, 4)
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{install: install, ports: rabbitPorts{ports[0], ports[1], ports[2], ports[3]}}
	if r.dir, err = os.MkdirTemp("", "postrider-rabbitmq-"); err != nil {
		return nil, fmt.Errorf("making the folder of RabbitMQ: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stopNames(context.WithoutCancel(ctx)), os.RemoveAll(r.dir))
		}
	}()
	if r.pki, err = NewPKI(r.dir); err != nil {
		return nil, err
	}
	for name, content := range map[string]string{
		"rabbitmq.conf": r.settings(cfg.Settings), "enabled_plugins": "[].\n", ".erlang.cookie": rabbitCookie,
	} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o400); err != nil {
			return nil, fmt.Errorf("writing RabbitMQ's settings: %w", err)
		}
	}
	if err := r.startNames(ctx); err != nil {
		return nil, err
	}
	if err := r.start(ctx, r.spec(install.server, nil, r.environment(), r.ports.amqp, r.ports.amqps)); err != nil {
		return nil, fmt.Errorf("starting RabbitMQ: %w", err)
	}
	return r, nil
}

// startNames starts epmd. RabbitMQ would start one itself, and leave it behind.
func (r *RabbitMQ) startNames(ctx context.Context) error {
	spec := r.spec(r.install.epmd, nil, r.environment(), r.ports.epmd)
	spec.Remove, spec.Log = "", filepath.Join(r.dir, "epmd.log")
	k, err := keeper.Launch(spec)
	if err != nil {
		return fmt.Errorf("launching a keeper: %w", err)
	}
	r.names = k
	if _, err := k.Start(ctx); err != nil {
		return fmt.Errorf("starting epmd: %w", err)
	}
	return nil
}

func (r *RabbitMQ) stopNames(ctx context.Context) error {
	if r.names == nil {
		return nil
	}
	return r.names.Close(ctx)
}

// rabbitCookie lets erl_call into the node, which listens on loopback alone.
const rabbitCookie = "postrider-tests"

func (r *RabbitMQ) node() string { return "test" + strconv.Itoa(r.ports.amqp) + "@localhost" }

func (r *RabbitMQ) settings(more []string) string {
	lines := append([]string{
		"listeners.tcp.1 = " + address(r.ports.amqp),
		"listeners.ssl.1 = " + address(r.ports.amqps),
		"ssl_options.cacertfile = " + r.pki.CA,
		"ssl_options.certfile = " + r.pki.ServerCert,
		"ssl_options.keyfile = " + r.pki.ServerKey,
		"ssl_options.verify = verify_peer",
		"ssl_options.fail_if_no_peer_cert = false",
		"max_message_size = 1500000", // the broker's own default is what no test wants to send
		"log.console = true", "log.console.level = warning", "log.file = false",
	}, more...)
	return strings.Join(lines, "\n") + "\n"
}

func (r *RabbitMQ) environment() []string {
	env := []string{
		"HOME=" + r.dir, "LC_ALL=C.UTF-8", "RABBITMQ_NODENAME=" + r.node(), "RABBITMQ_USE_LONGNAME=false",
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(r.dir, "none"),
		"RABBITMQ_CONFIG_FILE=" + filepath.Join(r.dir, "rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(r.dir, "enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + filepath.Join(r.dir, "mnesia"), "RABBITMQ_LOG_BASE=" + filepath.Join(r.dir, "log"),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(r.ports.distribution),
		"ERL_EPMD_ADDRESS=" + loopback, "ERL_EPMD_PORT=" + strconv.Itoa(r.ports.epmd),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		// Threads that are bound to processors starve where others use those.
		"RABBITMQ_SCHEDULER_BIND_TYPE=u",
		// The script then becomes Erlang itself, so that what is killed is the server and no shell before it.
		"RUNNING_UNDER_SYSTEMD=1",
	}
	if r.install.path != "" {
		env = append(env, "PATH="+r.install.path+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	return env
}

// Addr is the address of the plain listener.
func (r *RabbitMQ) Addr() string { return address(r.ports.amqp) }

// TLSAddr is the address of the listener that speaks TLS, and checks a client's certificate where one is shown.
func (r *RabbitMQ) TLSAddr() string { return address(r.ports.amqps) }

// User returns the name and the password of the user who may do everything.
func (r *RabbitMQ) User() (name, password string) { return rabbitUser, rabbitPassword }

// PKI returns the certificates of the node and of its clients.
func (r *RabbitMQ) PKI() PKI { return r.pki }

// Eval runs Erlang in the node, such as `rabbit_vhost:delete(<<"a">>, <<"test">>)`, and returns what it gives. It is how
// tests set what no AMQP client may. One asks at a time, each under a name of its own: the node refuses a name that it
// still knows.
func (r *RabbitMQ) Eval(ctx context.Context, expression string) (string, error) {
	r.asking.Lock()
	defer r.asking.Unlock()
	cmd := exec.CommandContext(ctx, r.install.call,
		"-h", "asks"+rand.Text(), "-sname", r.node(), "-c", rabbitCookie, "-e")
	cmd.Env = append(os.Environ(), r.environment()...)
	cmd.Stdin = strings.NewReader(expression + ".\n")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("asking RabbitMQ: %w: %s", err, complaint.Bytes())
	}
	result, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "{ok, ")
	if !ok {
		return "", fmt.Errorf("RabbitMQ answers %s", out)
	}
	return strings.TrimSuffix(result, "}"), nil
}

// Stop ends the node for good and removes its data.
func (r *RabbitMQ) Stop(ctx context.Context) error {
	if err := errors.Join(r.keeper.Close(ctx), r.stopNames(ctx)); err != nil {
		return fmt.Errorf("stopping RabbitMQ: %w", err)
	}
	return nil
}
