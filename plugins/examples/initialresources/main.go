// The plugin initialresources sets the CPU and memory requests that containers of new pods lack to what containers of
// the same image have used before, as the admission plugin InitialResources did, which Kubernetes removed in 1.11.
//
//	plugins:
//	- name: initialresources
//	  kind: admission
//	  path: /usr/local/lib/kubelith/initialresources
//	  config: {percentile: 90, minSamples: 30, refresh: 1m, halfLife: 168h, namespaceOnly: false}
//
// It reads usage from the resource metrics API and images from the pods, with the kubeconfig that each plugin gets;
// rbac.yaml allows it to. It keeps what it has learnt in its data directory, so it cannot run with limits.uid.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/cluster"
)

func main() {
	p := &plugin{connect: cluster.Dynamic}
	sdk.ServeAdmission(p.admission()) // returns when the host stops the plugin
	if p.history == nil {
		return
	}
	if err := p.history.save(p.file); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// saveEvery is how much the plugin may forget when it is killed, or replaced: the new process reads what the old one
// has saved by then.
const saveEvery = time.Minute

type plugin struct {
	connect  func() (dynamic.Interface, error)
	settings settings
	history  *history
	file     string // of the history
	log      hclog.Logger
	set      atomic.Int64 // requests
}

// settings are the operator's `config:`.
type settings struct {
	Percentile    float64 `json:"percentile"`
	MinSamples    float64 `json:"minSamples"` // fewer decide nothing
	Refresh       string  `json:"refresh"`    // how often usage is read
	HalfLife      string  `json:"halfLife"`   // after which a sample counts half
	NamespaceOnly bool    `json:"namespaceOnly"`
}

func (p *plugin) admission() sdk.Admission {
	return sdk.Admission{
		Version: "1", ProtobufObjects: true, Configure: p.configure, Metrics: p.metrics,
		Mutating: []sdk.MutatingHook{{
			Webhook: registrationv1.MutatingWebhook{
				Name: "pods", FailurePolicy: ptr.To(registrationv1.Ignore), // better no requests than no pods
				Rules: []registrationv1.RuleWithOperations{{
					Operations: []registrationv1.OperationType{registrationv1.Create},
					Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}},
			},
			Review: p.review,
		}},
	}
}

// configure loads the history and starts sampling.
func (p *plugin) configure(c sdk.Config) error {
	p.settings = settings{Percentile: 90, MinSamples: 30, Refresh: "1m", HalfLife: "168h"}
	if err := c.Decode(&p.settings); err != nil {
		return err
	}
	refresh, refreshErr := duration("refresh", p.settings.Refresh, time.Second)
	halfLife, halfLifeErr := duration("halfLife", p.settings.HalfLife, time.Hour)
	if err := errors.Join(refreshErr, halfLifeErr); err != nil {
		return err
	}
	switch {
	case p.settings.Percentile < 1 || p.settings.Percentile > 100:
		return fmt.Errorf("config: percentile: %v is not between 1 and 100", p.settings.Percentile)
	case p.settings.MinSamples < 1:
		return fmt.Errorf("config: minSamples: %v is less than 1", p.settings.MinSamples)
	case c.DataDir == "":
		return errors.New("it has no data directory for what it learns: remove limits.uid")
	}
	client, err := p.connect()
	if err != nil {
		return err
	}
	p.log, p.file, p.history = c.Log, filepath.Join(c.DataDir, "usage.json"), newHistory(halfLife)
	if err := p.history.load(p.file); err != nil {
		p.log.Warn("cannot read what was learnt before, starting with nothing", "error", err.Error())
	}
	go p.sample(newSampler(client, p.history), refresh)
	return nil
}

func duration(key, text string, least time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least {
		return 0, fmt.Errorf("config: %s: %q is not a duration of at least %s", key, text, least)
	}
	return d, nil
}

// sample runs as long as the process.
func (p *plugin) sample(s *sampler, refresh time.Duration) {
	s.follow(context.Background())
	saved := time.Now()
	for ; ; time.Sleep(refresh) {
		if err := s.round(context.Background()); err != nil {
			p.log.Warn("cannot read what containers use", "error", err.Error())
		}
		if time.Since(saved) < saveEvery {
			continue
		}
		saved = time.Now()
		if err := p.history.save(p.file); err != nil {
			p.log.Warn("cannot save what was learnt", "error", err.Error())
		}
	}
}

func (p *plugin) review(_ context.Context, r *admissionv1.AdmissionRequest) sdk.Response {
	pod, err := sdk.Object[corev1.Pod](r.Object)
	if err != nil {
		return sdk.Fail(err)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return sdk.Allow() // it must stay what the kubelet has read
	}
	set := p.fill(pod, r.Namespace, time.Now())
	if set == 0 {
		return sdk.Allow()
	}
	if r.DryRun == nil || !*r.DryRun {
		p.set.Add(int64(set))
	}
	return sdk.Patch(r, pod)
}

// metrics writes how much is known, and done.
func (p *plugin) metrics(w io.Writer) error {
	if p.history == nil {
		return nil
	}
	images, samples := p.history.size()
	_, err := fmt.Fprintf(w, `# HELP initialresources_images Images, by namespace, of which usage is known.
# TYPE initialresources_images gauge
initialresources_images %d
# HELP initialresources_samples_total Measurements of containers since the start of the plugin.
# TYPE initialresources_samples_total counter
initialresources_samples_total %d
# HELP initialresources_requests_total Requests that were set.
# TYPE initialresources_requests_total counter
initialresources_requests_total %d
`, images, samples, p.set.Load())
	return err
}
