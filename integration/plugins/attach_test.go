package plugins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// arrayDriver is that of ./array, and arrayAttached where it notes what is attached.
const (
	arrayDriver   = "array.example.com"
	arrayAttached = "/var/lib/kubelith/plugins/data/array/attached"
)

// testAttach: a driver that is not node-local and attaches volumes. A volume is attached for the first pod and detached
// after the last, through kills of the plugin, and why it is not is in an event of the pod.
func testAttach(t *testing.T, s *harness.Server) {
	install(t, s, harness.BuildProgram(t, "./array"), "/var/lib/kubelith/plugins/storage/array")
	wait(t, s, "array", "is ready", ready)
	ns := s.Namespace(t)
	createClaim(t, s, claim(ns, "data", "array", "64Mi"))
	pod := s.Run(t, podWith(ns, "writer", "data", "", harness.Shell("echo kept >/data/file; sleep 1000")...))
	v := volumeOf(t, s, ns, "data")
	record := s.Path(filepath.Join(arrayAttached, v.Spec.CSI.VolumeHandle))
	if got, err := os.ReadFile(record); string(got) != "initiator-of-"+pod.Spec.NodeName {
		t.Errorf("the array has the volume at %q, %v", got, err)
	}
	a, err := attachmentOf(t, s, v.Name)
	if err != nil || !a.Status.Attached || a.Status.AttachmentMetadata["port"] != "7" || a.Spec.NodeName != pod.Spec.NodeName {
		t.Errorf("the VolumeAttachment is %+v, %v", a, err)
	}

	kill(t, s, "array")
	deletePod(t, s, pod)
	harness.Eventually(t, harness.PodTimeout, "the volume to be detached", func() error {
		if _, err := os.Stat(record); err == nil {
			return errors.New("the array has it attached")
		}
		if a, err := attachmentOf(t, s, v.Name); err == nil {
			return fmt.Errorf("there is %s", a.Name)
		}
		return nil
	})

	refuse := s.Path(filepath.Join(arrayAttached, "refuse"))
	if err := os.WriteFile(refuse, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reader := s.Create(t, podWith(ns, "reader", "data", "", "sleep", "1000"))
	eventOf(t, s, ns, "Pod", "reader", "FailedAttachVolume", "no port of the array is free")
	if err := os.Remove(refuse); err != nil {
		t.Fatal(err)
	}
	reader = s.WaitRunning(t, reader)
	if got := s.PodExec(t, reader, "main", "cat", "/data/file"); got != "kept\n" {
		t.Errorf("the next pod reads %q", got)
	}
	deletePod(t, s, reader)
	deleteClaims(t, s, ns, "data")
	harness.Eventually(t, harness.PodTimeout, "the volume to be gone", func() error {
		left, _ := filepath.Glob(s.Path("/var/lib/kubelith/plugins/data/array/volumes/" + v.Spec.CSI.VolumeHandle))
		if _, err := os.Stat(record); err == nil || len(left) > 0 {
			return fmt.Errorf("%s is there", append(left, record))
		}
		return nil
	})
}

// attachmentOf a volume.
func attachmentOf(t *testing.T, s *harness.Server, volume string) (*storagev1.VolumeAttachment, error) {
	t.Helper()
	all, err := s.Client(t).StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i, a := range all.Items {
		if a.Spec.Attacher == arrayDriver && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == volume {
			return &all.Items[i], nil
		}
	}
	return nil, errors.New("there is none")
}

// kill ends the one process of a plugin.
func kill(t *testing.T, s *harness.Server, program string) {
	t.Helper()
	running := processes(t, s, program)
	if len(running) != 1 {
		t.Fatalf("processes %v of %s, want one", running, program)
	}
	s.Exec(t, "kill", "-9", fmt.Sprint(running[0]))
}
