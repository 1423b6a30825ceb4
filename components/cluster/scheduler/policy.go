package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"kubelith.io/kubelith/base/args"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/cluster/scheduler/policy"
)

// policyKey is the key of a policy in its ConfigMap.
const policyKey = "policy.cfg"

// policySource is where the scheduler's policy is, by the flags that kube-scheduler had up to 1.22.
type policySource struct {
	file, configMap, namespace string
	fileFirst                  bool
	translation                *policy.Translation // of the file
}

func (p *policySource) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.file, "policy-config-file", "", "file with a scheduler policy")
	fs.StringVar(&p.configMap, "policy-configmap", "", "ConfigMap with a scheduler policy at the key "+policyKey+"; it takes precedence over a file")
	fs.StringVar(&p.namespace, "policy-configmap-namespace", metav1.NamespaceSystem, "namespace of the policy's ConfigMap")
	fs.BoolVar(&p.fileFirst, "use-legacy-policy-config", false, "use the policy file, and not the ConfigMap")
}

// complete checks the flags and reads the file.
func (p *policySource) complete(configFile string) error {
	switch {
	case p.fileFirst && p.file == "":
		return errors.New("--scheduler-arg use-legacy-policy-config: set policy-config-file as well")
	case configFile != "" && p.configMap != "":
		return errors.New("--scheduler-arg policy-configmap: a file of config=FILE replaces it: leave one of them out")
	case configFile != "" && p.file != "":
		return errors.New("--scheduler-arg policy-config-file: a file of config=FILE replaces it: leave one of them out")
	}
	p.namespace = cmp.Or(p.namespace, metav1.NamespaceSystem)
	if p.fileFirst {
		p.configMap = ""
	}
	if p.file == "" || p.configMap != "" {
		return nil
	}
	text, err := os.ReadFile(p.file)
	if err == nil {
		p.translation, err = policy.Load(text)
	}
	if err != nil {
		return fmt.Errorf("--scheduler-arg policy-config-file=%s: %w", p.file, err)
	}
	return nil
}

// use lets the configuration follow the file.
func (p *policySource) use(cfg *config.KubeSchedulerConfiguration) {
	if t := p.translation; t != nil {
		cfg.Profiles, cfg.Extenders = t.Config.Profiles, t.Config.Extenders
	}
}

// PolicyConfigMap returns the ConfigMap that arguments of the scheduler name as its policy: the scheduler needs the
// right to read it. The name is empty if there is none.
func PolicyConfigMap(arguments []string) types.NamespacedName {
	var p policySource
	fs := pflag.NewFlagSet("policy", pflag.ContinueOnError)
	p.addFlags(fs)
	_ = args.ApplyTo("", fs, nil, arguments) // New reports wrong ones
	if p.configMap == "" || p.fileFirst {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: cmp.Or(p.namespace, metav1.NamespaceSystem), Name: p.configMap}
}

// policyRetry is the time between attempts to read the ConfigMap.
const policyRetry = time.Second

// followed returns the configuration of this run. It waits until the policy's ConfigMap exists and can be used; nil:
// ctx has ended.
func (s *Server) followed(ctx context.Context, cs kubernetes.Interface) *config.KubeSchedulerConfiguration {
	p, said := &s.policy, ""
	if p.translation != nil {
		s.announce("the file "+p.file, "kubelith scheduler-policy "+p.file, p.translation)
	}
	if p.configMap == "" {
		return s.config
	}
	name := "ConfigMap " + p.namespace + "/" + p.configMap
	for {
		t, err := p.read(ctx, cs)
		if err == nil {
			leave := fmt.Sprintf(`kubectl -n %s get configmap %s -o jsonpath='{.data.policy\.cfg}' | kubelith scheduler-policy -`,
				p.namespace, p.configMap)
			s.announce("the "+name, leave, t)
			c := *s.config
			c.Profiles, c.Extenders = t.Config.Profiles, t.Config.Extenders
			return &c
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			s.log().Errorf("--scheduler-arg policy-configmap: no pod is scheduled until this is corrected: %s: %v", name, err)
		}
		if !reconcile.Sleep(ctx, policyRetry) {
			return nil
		}
	}
}

func (p *policySource) read(ctx context.Context, cs kubernetes.Interface) (*policy.Translation, error) {
	m, err := cs.CoreV1().ConfigMaps(p.namespace).Get(ctx, p.configMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("it does not exist")
	} else if err != nil {
		return nil, err
	}
	text, ok := m.Data[policyKey]
	if !ok {
		return nil, fmt.Errorf("it has no key %q", policyKey)
	}
	t, err := policy.Load([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", policyKey, err)
	}
	return t, nil
}

// announce warns that a policy is in use.
func (s *Server) announce(source, leave string, t *policy.Translation) {
	s.log().Warnf("the scheduler follows a policy, which Kubernetes removed in 1.23: %s; "+
		"to leave it, set --scheduler-arg=config=FILE to the output of %s", source, leave)
	for _, note := range t.Notes {
		s.log().Warnf("policy: %s", note)
	}
}

func (s *Server) log() logrus.FieldLogger {
	if s.opts.Log != nil {
		return s.opts.Log
	}
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return silent
}
