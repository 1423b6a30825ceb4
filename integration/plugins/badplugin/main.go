// Badplugin is a plugin that fails as its first argument or a review requests.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/plugins/proto"
	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	if len(os.Args) > 1 {
		start(os.Args[1])
	}
	label := ""
	webhook := func() admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{
			Name: "fault",
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"plugin": label}},
		}
	}
	hooks := []sdk.MutatingHook{{Webhook: webhook(), Review: review}}
	sdk.ServeAdmission(sdk.Admission{
		Version: "bad",
		Configure: func(c sdk.Config) error {
			label = c.Name
			hooks[0].Webhook = webhook()
			return nil
		},
		Mutating: hooks,
	})
}

// start goes wrong before the plugin serves; "good" does not.
func start(fault string) {
	switch fault {
	case "good":
	case "exits":
		fmt.Fprintln(os.Stderr, "cannot open the database: no such file")
		os.Exit(2)
	case "garbage":
		fmt.Println("\x1b[31mHello, I am no plugin\x00" + strings.Repeat("x", 100_000))
		time.Sleep(time.Minute)
	case "silent":
		time.Sleep(time.Hour)
	case "protocol":
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig:  proto.Handshake,
			VersionedPlugins: map[int]plugin.PluginSet{99: {proto.Name: nothing{}}},
			GRPCServer:       plugin.DefaultGRPCServer,
		})
	case "refuses":
		sdk.ServeAdmission(sdk.Admission{Configure: func(sdk.Config) error { return errors.New("the licence is missing") }})
	default:
		fmt.Fprintf(os.Stderr, "no fault %q\n", fault)
		os.Exit(1)
	}
}

// nothing is a plugin that serves nothing.
type nothing struct{ plugin.NetRPCUnsupportedPlugin }

func (nothing) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }
func (nothing) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

// review fails as the object's annotation "fault" requests; without it the object gets our annotation.
func review(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	object, err := sdk.Object[corev1.ConfigMap](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	switch object.Annotations["fault"] {
	case "crash":
		go panic("out of order")
		time.Sleep(time.Minute)
	case "exit":
		os.Exit(7)
	case "hang":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Minute)
	case "sleep":
		time.Sleep(time.Minute)
	case "leak":
		leak()
	case "patch":
		kind := admissionv1.PatchTypeJSONPatch
		return sdk.Response{AdmissionResponse: admissionv1.AdmissionResponse{Allowed: true, PatchType: &kind,
			Patch: []byte(`[{"op":"remove","path":"/no/such/field"}]`)}}
	case "huge":
		answer := sdk.Allow()
		answer.Warnings = []string{strings.Repeat("x", proto.MaxResponseSize+1)}
		return answer
	case "attack":
		return sdk.Deny(attack())
	case "error":
		return sdk.Fail(errors.New("the backend is away"))
	case "deny":
		return sdk.Deny("this one is never allowed")
	}
	changed := object.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	changed.Annotations["reviewed"] = "yes"
	return sdk.Patch(r, changed)
}

// attack tries to redirect what root renews for this plugin, and to read other plugins' files. It returns the results.
func attack() string {
	own := filepath.Dir(os.Getenv(proto.KubeconfigVariable))
	if _, err := os.ReadFile(filepath.Join(own, "client.key")); err != nil {
		return err.Error()
	}
	var done []string
	if os.Rename(own, own+".away") == nil {
		done = append(done, "its credentials were moved")
	}
	if os.Symlink("/etc", filepath.Join(own, "client.key.tmp")) == nil {
		done = append(done, "a link is among its credentials")
	}
	self, err := os.Stat(filepath.Join(own, "client.key"))
	if err != nil {
		return err.Error()
	}
	keys, _ := filepath.Glob("/proc/[0-9]*/fd/*/user/client.key")
	for _, key := range keys {
		if other, err := os.Stat(key); err == nil && !os.SameFile(self, other) {
			done = append(done, key+" is there to be read")
		}
	}
	if len(done) == 0 {
		return "nothing was possible"
	}
	return strings.Join(done, ", ")
}

// leak takes memory until there is none.
func leak() {
	var kept [][]byte
	for i := range math.MaxInt32 {
		block := make([]byte, 1<<20)
		for at := 0; at < len(block); at += 4096 {
			block[at] = byte(i)
		}
		kept = append(kept, block)
	}
	fmt.Fprintln(os.Stderr, len(kept))
}
