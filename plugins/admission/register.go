package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	webhookadmissionv1 "k8s.io/apiserver/pkg/admission/plugin/webhook/config/apis/webhookadmission/v1"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	manifests "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/source"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"kubelith.io/kubelith/plugins"
)

// Options of the registry.
type Options struct {
	Plugins plugins.Set
	Log     logrus.FieldLogger
}

// Registry returns all admission plugins of kube-apiserver, with plugins' hooks in the two for webhooks. It is a new
// registry, as upstream's does not allow replacing factories.
// Source: server.RegisterAllAdmissionPlugins and kubeoptions.NewAdmissionOptions.
func Registry(o Options) (*admission.Plugins, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ManifestBasedAdmissionControlConfig) {
		return nil, errors.New("admission plugins need the feature gate ManifestBasedAdmissionControlConfig, which is off: leave it out of the feature gates")
	}
	p := admission.NewPlugins()
	lifecycle.Register(p)
	validatingpolicy.Register(p)
	mutatingpolicy.Register(p)
	kubeoptions.RegisterAllAdmissionPlugins(p)
	p.Register(mutating.PluginName, func(config io.Reader) (admission.Interface, error) { return newMutating(config, o) })
	p.Register(validating.PluginName, func(config io.Reader) (admission.Interface, error) { return newValidating(config, o) })
	return p, nil
}

// mutatingPlugin is upstream's plugin with plugins' hooks.
type mutatingPlugin struct {
	*mutating.Plugin
	opts Options
	dir  string // directory of webhooks that the user configured; empty: none
	load initializer.MutatingWebhookManifestLoadFunc
}

// validatingPlugin is upstream's plugin with plugins' hooks.
type validatingPlugin struct {
	*validating.Plugin
	opts Options
	dir  string
	load initializer.ValidatingWebhookManifestLoadFunc
}

var (
	_ admission.MutationInterface      = (*mutatingPlugin)(nil)
	_ admission.ValidationInterface    = (*validatingPlugin)(nil)
	_ initializer.WantsManifestLoaders = (*mutatingPlugin)(nil)
	_ initializer.WantsManifestLoaders = (*validatingPlugin)(nil)
)

func newMutating(config io.Reader, o Options) (*mutatingPlugin, error) {
	config, dir, err := withSource(config)
	if err != nil {
		return nil, err
	}
	upstream, err := mutating.NewMutatingWebhook(config)
	if err != nil {
		return nil, err
	}
	p := &mutatingPlugin{Plugin: upstream, opts: o, dir: dir}
	p.SetStaticSourceFactory(p.source)
	return p, nil
}

func newValidating(config io.Reader, o Options) (*validatingPlugin, error) {
	config, dir, err := withSource(config)
	if err != nil {
		return nil, err
	}
	upstream, err := validating.NewValidatingAdmissionWebhook(config)
	if err != nil {
		return nil, err
	}
	p := &validatingPlugin{Plugin: upstream, opts: o, dir: dir}
	p.SetStaticSourceFactory(p.source)
	return p, nil
}

// SetManifestLoaders keeps the loader. Upstream's method would replace this package's source by its own.
func (p *mutatingPlugin) SetManifestLoaders(l *initializer.ManifestLoaders) {
	p.load = l.LoadMutatingWebhookManifests
}

// SetManifestLoaders does the same as mutatingPlugin's.
func (p *validatingPlugin) SetManifestLoaders(l *initializer.ManifestLoaders) {
	p.load = l.LoadValidatingWebhookManifests
}

func (p *mutatingPlugin) source(string) (generic.ReloadableSource, error) {
	ours := newSource(p.opts, func(r ruleset) []webhook.WebhookAccessor { return r.mutating })
	if p.dir == "" {
		return ours, nil
	}
	theirs := manifests.NewMutatingSource(p.dir, p.GetAPIServerID(), manifests.MutatingWebhookLoadFunc(p.load))
	if err := theirs.LoadInitial(); err != nil {
		return nil, err
	}
	return newTogether(ours, theirs), nil
}

func (p *validatingPlugin) source(string) (generic.ReloadableSource, error) {
	ours := newSource(p.opts, func(r ruleset) []webhook.WebhookAccessor { return r.validating })
	if p.dir == "" {
		return ours, nil
	}
	theirs := manifests.NewValidatingSource(p.dir, p.GetAPIServerID(), manifests.ValidatingWebhookLoadFunc(p.load))
	if err := theirs.LoadInitial(); err != nil {
		return nil, err
	}
	return newTogether(ours, theirs), nil
}

// withSource changes the configuration of an admission plugin (--admission-control-config-file) so that upstream
// requests a source of webhooks, and returns the directory of webhooks that the user configured.
func withSource(given io.Reader) (io.Reader, string, error) {
	user, err := config.LoadConfig(given)
	if err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(webhookadmissionv1.WebhookAdmission{
		TypeMeta:       metav1.TypeMeta{APIVersion: webhookadmissionv1.SchemeGroupVersion.String(), Kind: "WebhookAdmissionConfiguration"},
		KubeConfigFile: user.KubeConfigFile,
		// Upstream requires an existing directory, but reads it only through the source, which this package provides.
		StaticManifestsDir: "/",
	})
	return bytes.NewReader(text), user.StaticManifestsDir, err
}
