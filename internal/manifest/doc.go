// Package manifest reads the YAML that a cluster would be given: resources of ours with the Secrets and
// ConfigMaps they name.
//
// It checks by the generated CustomResourceDefinitions, with the API server's own code, so that a laptop and a
// cluster accept and refuse the same objects and fill in the same defaults. Everything wrong is reported at
// once, with file, line and field. The values of Secrets never appear in an error or in print. It dials nothing.
package manifest
