package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// startTimeout is generous: the machine may be busy with other tests.
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// Plane is a running control plane: etcd, API server with RBAC, and controller manager. No node is part of it, so Pods
// are made and stay pending unless a test plays the kubelet.
type Plane struct {
	// Config logs in as administrator.
	Config *rest.Config
	// Kubeconfig is a file that does the same.
	Kubeconfig string
	assets     string
	dir        string
	env        *envtest.Environment
	manager    *exec.Cmd
	ended      chan struct{}
}

// Start starts a control plane that knows our kinds.
func Start(ctx context.Context) (p *Plane, err error) {
	assets, err := Assets(ctx)
	if err != nil {
		return nil, err
	}
	root, err := Root(ctx)
	if err != nil {
		return nil, err
	}
	p = &Plane{assets: assets, env: &envtest.Environment{
		CRDDirectoryPaths: []string{filepath.Join(root, "config", "crd")}, ErrorIfCRDPathMissing: true,
		BinaryAssetsDirectory: assets, ControlPlaneStartTimeout: startTimeout, ControlPlaneStopTimeout: stopTimeout,
	}}
	begun := p // a failing return has made p nil by then
	defer func() {
		if err != nil {
			err = errors.Join(err, begun.Stop())
		}
	}()
	if p.dir, err = os.MkdirTemp("", "postrider-cluster-"); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	if err := p.endServersWithParent(); err != nil {
		return nil, err
	}
	if p.Config, err = p.env.Start(); err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	p.Config.QPS, p.Config.Burst = -1, 0 // tests are in a hurry
	p.Kubeconfig = filepath.Join(p.dir, "kubeconfig")
	if err := os.WriteFile(p.Kubeconfig, p.env.KubeConfig, 0o600); err != nil {
		return nil, fmt.Errorf("write the kubeconfig: %w", err)
	}
	return p, p.startControllerManager(ctx)
}

// endServersWithParent has etcd and the API server, which the library starts, end with this process, however that ends. The
// library takes a program's path and nothing more: the program is a script that sets its own death signal. Without
// setpriv, which Linux has, they end when they are stopped.
func (p *Plane) endServersWithParent() error {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	script := func(server string) string {
		return fmt.Sprintf(
			"#!/bin/sh\nexec '%s' --pdeathsig KILL '%s' \"$@\"\n",
			setpriv,
			filepath.Join(p.assets, server),
		)
	}
	paths := make(map[string]string)
	for _, server := range []string{"etcd", "kube-apiserver"} {
		paths[server] = filepath.Join(p.dir, server)
		if err := os.WriteFile(paths[server], []byte(script(server)), 0o700); err != nil {
			return fmt.Errorf("write what starts %s: %w", server, err)
		}
	}
	p.env.ControlPlane.Etcd = &envtest.Etcd{Path: paths["etcd"]}
	p.env.ControlPlane.APIServer = &envtest.APIServer{Path: paths["kube-apiserver"]}
	return nil
}

// startControllerManager runs what makes Pods of Deployments and collects what is left of deleted owners. It ends with
// this process, however that ends.
func (p *Plane) startControllerManager(ctx context.Context) error {
	key := filepath.Join(p.env.ControlPlane.GetAPIServer().CertDir, "sa-signer.key")
	log, err := os.Create(filepath.Join(p.dir, "kube-controller-manager.log"))
	if err != nil {
		return fmt.Errorf("open a log: %w", err)
	}
	p.manager = exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(p.assets, "kube-controller-manager"),
		"--kubeconfig="+p.Kubeconfig, "--authentication-kubeconfig="+p.Kubeconfig,
		"--authorization-kubeconfig="+p.Kubeconfig, "--service-account-private-key-file="+key,
		"--use-service-account-credentials=false", "--leader-elect=false", "--bind-address=127.0.0.1",
		"--secure-port=0", "--controllers=*", "--concurrent-gc-syncs=10",
	)
	p.manager.Stdout, p.manager.Stderr = log, log
	p.manager.SysProcAttr = endWithParent()
	if err := p.manager.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the controller manager: %w", err), log.Close())
	}
	p.ended = make(chan struct{})
	go func() {
		_ = p.manager.Wait() // Stop ends it, and its log says the rest
		_ = log.Close()
		close(p.ended)
	}()
	return nil
}

// Kubectl returns a call of kubectl as administrator.
func (p *Plane) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return kubectl(ctx, p.assets, p.Kubeconfig, args...)
}

func kubectl(ctx context.Context, assets, kubeconfig string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(assets, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	return cmd
}

// Stop ends everything and removes its data.
func (p *Plane) Stop() error {
	var errs []error
	if p.ended != nil {
		errs = append(errs, p.manager.Process.Signal(syscall.SIGTERM))
		timer := time.NewTimer(stopTimeout)
		select {
		case <-p.ended:
		case <-timer.C:
			errs = append(errs, p.manager.Process.Kill())
		}
		timer.Stop()
	}
	errs = append(errs, p.env.Stop()) // also what a failed start has left
	if p.dir != "" {
		errs = append(errs, os.RemoveAll(p.dir))
	}
	return errors.Join(errs...)
}
