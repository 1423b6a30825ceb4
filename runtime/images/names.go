// Package images has the images that are embedded in the executable. programs/ has their sources, make/ the program
// that packs them; components/worker/images imports them into containerd's store.
package images

// The embedded images, as containers name them: Pause holds a pod's namespaces, Hello is a small web server and client
// for a first application.
const (
	Pause = "docker.io/kubelith/pause:" + Version
	Hello = "docker.io/kubelith/hello:" + Version

	// Version increases when an image changes in a way that users would notice.
	Version = "1"
)
