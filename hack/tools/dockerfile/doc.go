// Package dockerfile checks the Dockerfile with BuildKit's own parser. It is a module of its own, so that
// the product does not depend on BuildKit.
package dockerfile
