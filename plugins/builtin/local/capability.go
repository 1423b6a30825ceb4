package local

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// accessModes that a volume of one node can have.
var accessModes = map[csi.VolumeCapability_AccessMode_Mode]bool{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        true,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   true,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: true,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  true,
}

// modeOf returns the mode of the requested capabilities. They must all be of the same kind, and of access modes of one
// node.
func modeOf(all []*csi.VolumeCapability) (mode, error) {
	found := mode("")
	for _, c := range all {
		m, err := modeOfOne(c)
		if err != nil {
			return "", err
		}
		if found != "" && m != found {
			return "", fmt.Errorf("a volume is a file system or a block device, not both")
		}
		found = m
	}
	if found == "" {
		return "", fmt.Errorf("volume capability is missing")
	}
	return found, nil
}

func modeOfOne(c *csi.VolumeCapability) (mode, error) {
	if m := c.GetAccessMode().GetMode(); !accessModes[m] {
		return "", fmt.Errorf("access mode %s: a local volume is on one node; use ReadWriteOnce or ReadWriteOncePod", m)
	}
	switch {
	case c.GetBlock() != nil:
		return block, nil
	case c.GetMount() != nil:
		_, err := flagsOf(c.GetMount().GetMountFlags(), false)
		return filesystem, err
	}
	return "", fmt.Errorf("volume capability says neither block nor mount")
}

// singleWriter reports whether at most one pod may use the volume.
func singleWriter(c *csi.VolumeCapability) bool {
	return c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
}
