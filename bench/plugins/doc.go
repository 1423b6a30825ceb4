// Package plugins measures what plugins cost, side by side with what Kubernetes has instead of them. `make
// bench-plugins` runs all of it.
package plugins
