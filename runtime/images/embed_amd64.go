package images

import "embed"

//go:embed all:embed/amd64
var embeddedFiles embed.FS

const embeddedDir = "embed/amd64"
