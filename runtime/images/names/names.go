// Package names has the names of the embedded images, for the program that makes them and the component
// that imports them.
package names

const (
	// Pause is what holds a pod's namespaces, Hello a small web server and client for a first application.
	Pause = "docker.io/kubelith/pause:" + Version
	Hello = "docker.io/kubelith/hello:" + Version

	// Version goes up when an image changes in a way that users would notice.
	Version = "1"
)
