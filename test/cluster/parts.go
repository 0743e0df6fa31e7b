package cluster

import (
	"fmt"
	"syscall"

	"github.com/postrider/postrider/test/sandbox"
)

const etcdURL = "http://127.0.0.1:2379"

// planeArguments are those of the parts that nothing needs to run before.
func (c *Cluster) planeArguments() map[string][]string {
	peer := "http://127.0.0.1:2380"
	return map[string][]string{
		"etcd": {
			"--name=box", "--data-dir=" + c.path("etcd"), "--unsafe-no-fsync",
			"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=box=" + peer,
		},
		"kube-apiserver": {
			"--etcd-servers=" + etcdURL, "--bind-address=" + sandbox.Address, "--advertise-address=" + sandbox.Address,
			"--secure-port=" + apiPort, "--service-cluster-ip-range=" + serviceCIDR, "--allow-privileged=true",
			"--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=lease",
			"--client-ca-file=" + c.pki.file("ca.crt"),
			"--tls-cert-file=" + c.pki.file("apiserver.crt"), "--tls-private-key-file=" + c.pki.file("apiserver.key"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + c.pki.file("service-account.key"),
			"--service-account-signing-key-file=" + c.pki.file("service-account.key"),
			"--kubelet-certificate-authority=" + c.pki.file("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate=" + c.pki.file("apiserver-kubelet.crt"),
			"--kubelet-client-key=" + c.pki.file("apiserver-kubelet.key"),
		},
	}
}

// controllerArguments are those of the parts that need the API server.
func (c *Cluster) controllerArguments() map[string][]string {
	login := func(user, port string) []string {
		file := c.path(user + ".kubeconfig")
		return []string{
			"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file,
			"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=" + port,
		}
	}
	return map[string][]string{
		"kube-controller-manager": append(
			login("controller-manager", "10257"),
			"--use-service-account-credentials=true",
			"--service-account-private-key-file="+c.pki.file("service-account.key"),
			"--root-ca-file="+c.pki.file("ca.crt"),
		),
		"kube-scheduler": login("scheduler", "10259"),
	}
}

// kubeconfig takes the server, its authority, the user's certificate and key.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: box, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: user, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: box, context: {cluster: box, user: user}}]
current-context: box
`

const bridgeConfig = `{"cniVersion": "0.4.0", "name": "box", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {
    "type": "host-local", "dataDir": "/run/cni-ipam",
    "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]
  }
}]}
`

// overlayFS is the file system type on which another overlay cannot be put: that of a container's own files.
const overlayFS = 0x794c7630

// containerdConfig keeps everything in the sandbox's folder or its own /run.
func (c *Cluster) containerdConfig() (string, error) {
	snapshotter := "overlayfs"
	var fs syscall.Statfs_t
	if err := syscall.Statfs(c.box.Dir, &fs); err != nil {
		return "", fmt.Errorf("look at the disk of %s: %w", c.box.Dir, err)
	}
	if int64(fs.Type) == overlayFS { //nolint:unconvert // its size differs between machines
		snapshotter = "native" // which copies
	}
	return fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
`, c.path("containerd"), PauseImage, snapshotter, pluginsDir, c.path("cni")), nil
}

// kubeletConfig puts all Pods into the sandbox's control group and never evicts: the disk is not the test's.
func (c *Cluster) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzBindAddress: 127.0.0.1
tlsCertFile: %[2]q
tlsPrivateKeyFile: %[3]q
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %[4]q}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%[5]s
cgroupsPerQOS: true
enforceNodeAllocatable: []
failSwapOn: false
clusterDNS: [%[1]s]
clusterDomain: %[6]s
resolvConf: ""
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 1Mi, nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
podLogsDir: %[7]q
volumePluginDir: %[8]q
`, sandbox.Address, c.pki.file("kubelet.crt"), c.pki.file("kubelet.key"), c.pki.file("ca.crt"), c.box.Cgroup,
		clusterDomain, c.path("podlogs"), c.path("volumeplugins"))
}

func (c *Cluster) proxyConfig() string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %q}
mode: nftables
clusterCIDR: %s
hostnameOverride: %s
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0}
`, c.path("proxy.kubeconfig"), podCIDR, nodeName)
}
