package images

import "embed"

//go:embed all:embed/arm64
var embeddedFiles embed.FS

const embeddedDir = "embed/arm64"
