//go:build !linux

package sandbox

import (
	"context"
	"errors"
)

// Run cannot be had here.
func Run(context.Context) (int, error) { return 0, errors.New("this needs Linux") }
