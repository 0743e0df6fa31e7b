// Package crd carries the generated CustomResourceDefinitions, so that every program of ours checks
// resources by the very rules of the cluster.
//
// It holds files only; internal/manifest gives them their meaning.
package crd

//go:generate go test . -run ^TestDocsDescribeTheResources$ -update

import "embed"

// Files holds one generated CustomResourceDefinition a file.
//
//go:embed postrider.dev_*.yaml
var Files embed.FS
