package v1alpha1

// SecretReference names a Secret in the resource's own namespace. Only the keys that the referring field
// lists are mounted, and only into this resource's workers.
type SecretReference struct {
	// name is the Secret's name. A change rolls the Pods; a change of the Secret's content is taken over live.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a Secret in this namespace: lower case letters, digits, - and ."
	Name string `json:"name,omitempty"`
}

// ConfigMapReference names a ConfigMap in the resource's own namespace.
type ConfigMapReference struct {
	// name is the ConfigMap's name. A change rolls the Pods; a change of the ConfigMap's content is taken over
	// live.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a ConfigMap in this namespace: lower case letters, digits, - and ."
	Name string `json:"name,omitempty"`
}

// Keys of the Secrets and ConfigMaps that resources refer to.
const (
	// KeyUsername holds a user name in a credentials Secret.
	KeyUsername = "username"
	// KeyPassword holds a password in a credentials Secret.
	KeyPassword = "password"
	// KeyNATSToken holds a token that logs in to NATS.
	KeyNATSToken = "nats-token"
	// KeyNATSNKey holds the seed of a user's NKey, which logs in to NATS and begins with SU.
	KeyNATSNKey = "nkey"
	// KeyNATSCredentials holds a credentials file of NATS: a user's JWT and the seed of its NKey.
	KeyNATSCredentials = "user.creds"
	// KeyCA holds the trusted certificates, in PEM.
	KeyCA = "ca.crt"
	// KeyTLSCertificate holds a client certificate, in PEM.
	KeyTLSCertificate = "tls.crt"
	// KeyTLSPrivateKey holds the client certificate's private key, in PEM.
	KeyTLSPrivateKey = "tls.key"
)
