// Command kubernetes is a whole cluster in one binary: etcd, API server, controller manager, scheduler, kubelet, proxy
// and kubectl, each as its own code has it. It runs the part whose name it is called by (a link such as
// kube-apiserver), or else the one that its first argument names.
//
// It is built for tests and the quick start only, once a version, into the cache: see test/cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	_ "time/tzdata" // time zones, for machines that have none

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's ways to log in
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the parts' own metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = "usage: kubernetes PART [ARGUMENT...]\nparts: etcd kubectl kube-apiserver kube-controller-manager " +
	"kube-proxy kube-scheduler kubelet"

func main() {
	part := filepath.Base(os.Args[0])
	if !slices.Contains(parts(), part) && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		part = os.Args[0]
	}
	if !slices.Contains(parts(), part) {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	run(part)
}

func parts() []string {
	return []string{
		"etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet",
	}
}

// run ends the process with the part's exit code.
func run(part string) {
	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kubectl":
		logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) //nolint:errcheck // as kubectl itself does
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
	default:
		os.Exit(cli.Run(command(part)))
	}
}

func command(part string) *cobra.Command {
	switch part {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	default:
		return kubelet.NewKubeletCommand(context.Background())
	}
}
