package desired

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
)

const (
	// LabelMetrics on a namespace, with the value MetricsEnabled, lets its Pods read the workers' metrics.
	LabelMetrics = "postrider.dev/metrics"
	// MetricsEnabled is the value of LabelMetrics.
	MetricsEnabled = "enabled"

	labelNamespaceName = "kubernetes.io/metadata.name"
	dnsPort            = 53
)

// networkPolicy closes what a worker has no use for. It is reached at its status port only, from the operator and from
// namespaces that read metrics. It reaches anything but the addresses of its node, where clouds hand out credentials:
// which hosts a name stands for only the network knows, and a Service's port need not be its Pods'.
func (b builder) networkPolicy() *networkingv1ac.NetworkPolicyApplyConfiguration {
	if b.settings.OperatorNamespace == "" {
		return nil
	}
	everyone := func(cidr string, but ...string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
		return networkingv1ac.NetworkPolicyPeer().
			WithIPBlock(networkingv1ac.IPBlock().WithCIDR(cidr).WithExcept(but...))
	}
	port := func(protocol corev1.Protocol, number int32) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
		return networkingv1ac.NetworkPolicyPort().WithProtocol(protocol).WithPort(intstr.FromInt32(number))
	}
	from := func(label, value string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
		return networkingv1ac.NetworkPolicyPeer().
			WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{label: value}))
	}
	operator := from(labelNamespaceName, b.settings.OperatorNamespace).
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{
			labelName: ManagedBy, labelComponent: "manager",
		}))
	return networkingv1ac.NetworkPolicy(b.name, b.owner.GetNamespace()).
		WithLabels(b.labels()).WithOwnerReferences(b.ownedBy()).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(b.selector)).
			WithPolicyTypes(networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress).
			WithIngress(networkingv1ac.NetworkPolicyIngressRule().
				WithFrom(operator, from(LabelMetrics, MetricsEnabled)).
				WithPorts(port(corev1.ProtocolTCP, StatusPort))).
			WithEgress(
				// Names are resolved anywhere: a node's own cache has an address of the node.
				networkingv1ac.NetworkPolicyEgressRule().
					WithPorts(port(corev1.ProtocolUDP, dnsPort), port(corev1.ProtocolTCP, dnsPort)),
				networkingv1ac.NetworkPolicyEgressRule().WithTo(
					everyone("0.0.0.0/0", "169.254.0.0/16"),
					everyone("::/0", "fe80::/10", "fd00:ec2::254/128"),
					// Some networks count the cluster's own Pods to no address block.
					networkingv1ac.NetworkPolicyPeer().WithNamespaceSelector(metav1ac.LabelSelector()),
				),
			))
}
