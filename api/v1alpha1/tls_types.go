package v1alpha1

// TLSMode says how far a connection is protected.
// +kubebuilder:validation:Enum=VerifyFull;VerifyCA;Insecure
type TLSMode string

// The TLS modes.
const (
	// TLSModeVerifyFull encrypts and checks the server's certificate and name.
	TLSModeVerifyFull TLSMode = "VerifyFull"
	// TLSModeVerifyCA encrypts and checks the server's certificate, but not its name.
	TLSModeVerifyCA TLSMode = "VerifyCA"
	// TLSModeInsecure sends plain text.
	TLSModeInsecure TLSMode = "Insecure"
)

// TLS says how a connection is protected. TLS 1.2 is the oldest version used; there is no fallback to plain text.
// +kubebuilder:validation:AtMostOneOf=caSecretRef;caConfigMapRef
// +kubebuilder:validation:XValidation:rule="self.mode != 'Insecure' || !(has(self.caSecretRef) || has(self.caConfigMapRef) || has(self.clientCertificateSecretRef))",message="mode Insecure sends plain text and uses no certificate: remove the certificate references, or choose VerifyFull"
type TLS struct {
	// mode says how far the connection is protected. VerifyFull encrypts and checks the server's certificate and
	// name; VerifyCA leaves the name unchecked; Insecure sends plain text, credentials included, works only where
	// the operator runs with --allow-insecure-transport, and shows as condition InsecureTransport. A change is
	// taken over live by new connections. Defaults to VerifyFull.
	// +optional
	// +kubebuilder:default=VerifyFull
	Mode TLSMode `json:"mode,omitempty"`

	// caSecretRef names the Secret whose key ca.crt holds the trusted certificates, in PEM.
	// Without it and caConfigMapRef the certificates of the image's system are trusted. A change rolls the Pods.
	// +optional
	CASecretRef *SecretReference `json:"caSecretRef,omitempty"`

	// caConfigMapRef names the ConfigMap whose key ca.crt holds the trusted certificates, in PEM,
	// as trust-manager writes it. A change rolls the Pods.
	// +optional
	CAConfigMapRef *ConfigMapReference `json:"caConfigMapRef,omitempty"`

	// clientCertificateSecretRef names the Secret whose keys tls.crt and tls.key hold the certificate this side
	// shows, for servers that ask for one. A change rolls the Pods.
	// +optional
	ClientCertificateSecretRef *SecretReference `json:"clientCertificateSecretRef,omitempty"`
}
