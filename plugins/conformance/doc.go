// Package conformance tests plugins from the outside, whoever wrote them: one suite per kind.
//
// A storage plugin is a CSI driver, so its suite is that of kubernetes-csi: Storage.
package conformance
