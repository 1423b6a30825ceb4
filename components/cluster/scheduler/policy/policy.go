// Package policy reads the scheduler's policy files (kind: Policy, apiVersion: v1), which Kubernetes removed in 1.23,
// and translates them into the configuration that kube-scheduler has today. What each name means is what it meant in
// 1.22.
//
// Parse reads a file, strictly: each error names the line. Translate does the rest: the filters and scores of the
// profile are those that the policy names, and no others. Where today's Kubernetes has no plugin for a name, it is one
// of the package removed.
//
// Source: pkg/scheduler/framework/plugins/legacy_registry.go and pkg/scheduler/factory.go of Kubernetes 1.22.
package policy

import "fmt"

// Policy is a policy as its file has it. A list that is nil is not in the file: it means the default. An empty one
// means none.
type Policy struct {
	Kind                           string      `json:"kind"`
	APIVersion                     string      `json:"apiVersion"`
	Predicates                     []Predicate `json:"predicates"`
	Priorities                     []Priority  `json:"priorities"`
	Extenders                      []Extender  `json:"extenders"`
	HardPodAffinitySymmetricWeight int32       `json:"hardPodAffinitySymmetricWeight"`
	AlwaysCheckAllPredicates       bool        `json:"alwaysCheckAllPredicates"`
}

// Predicate excludes nodes.
type Predicate struct {
	Line     int                `json:"-"` // of its name
	Name     string             `json:"name"`
	Argument *PredicateArgument `json:"argument"`
}

// PredicateArgument has one field that is set. The predicate's name is the user's then.
type PredicateArgument struct {
	ServiceAffinity *ServiceAffinity `json:"serviceAffinity"`
	LabelsPresence  *LabelsPresence  `json:"labelsPresence"`
}

// ServiceAffinity keeps the pods of a Service on nodes that have the same values of these labels.
type ServiceAffinity struct {
	Labels []string `json:"labels"`
}

// LabelsPresence requires that nodes have all of these labels or, without Presence, none of them.
type LabelsPresence struct {
	Labels   []string `json:"labels"`
	Presence bool     `json:"presence"`
}

// Priority ranks nodes.
type Priority struct {
	Line     int               `json:"-"` // of its name
	Name     string            `json:"name"`
	Weight   int64             `json:"weight"`
	Argument *PriorityArgument `json:"argument"`
}

// PriorityArgument has one field that is set. The priority's name is the user's then.
type PriorityArgument struct {
	ServiceAntiAffinity               *ServiceAntiAffinity               `json:"serviceAntiAffinity"`
	LabelPreference                   *LabelPreference                   `json:"labelPreference"`
	RequestedToCapacityRatioArguments *RequestedToCapacityRatioArguments `json:"requestedToCapacityRatioArguments"`
}

// ServiceAntiAffinity spreads the pods of a Service over the values of a node label.
type ServiceAntiAffinity struct {
	Label string `json:"label"`
}

// LabelPreference prefers nodes that have a label or, without Presence, those that do not.
type LabelPreference struct {
	Label    string `json:"label"`
	Presence bool   `json:"presence"`
}

// RequestedToCapacityRatioArguments is a function of how full a node is.
type RequestedToCapacityRatioArguments struct {
	Shape     []UtilizationShapePoint `json:"shape"`
	Resources []ResourceSpec          `json:"resources"`
}

// UtilizationShapePoint is a point of that function: 0 to 100 percent have a score from 0 to 10.
type UtilizationShapePoint struct {
	Utilization int32 `json:"utilization"`
	Score       int32 `json:"score"`
}

// ResourceSpec is the weight of a resource.
type ResourceSpec struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight"`
}

// Extender is an HTTP server that the scheduler calls. The names of its fields, and of those below it, may be in upper
// or lower case, as they always were.
type Extender struct {
	URLPrefix        string            `json:"urlPrefix"`
	FilterVerb       string            `json:"filterVerb"`
	PreemptVerb      string            `json:"preemptVerb"`
	PrioritizeVerb   string            `json:"prioritizeVerb"`
	Weight           int64             `json:"weight"`
	BindVerb         string            `json:"bindVerb"`
	EnableHTTPS      bool              `json:"enableHttps"`
	TLSConfig        *TLSConfig        `json:"tlsConfig"`
	HTTPTimeout      int64             `json:"httpTimeout"` // nanoseconds
	NodeCacheCapable bool              `json:"nodeCacheCapable"`
	ManagedResources []ManagedResource `json:"managedResources"`
	Ignorable        bool              `json:"ignorable"`
}

// TLSConfig is how an extender is reached by HTTPS.
type TLSConfig struct {
	Insecure   bool   `json:"insecure"`
	ServerName string `json:"serverName"`
	CertFile   string `json:"certFile"`
	KeyFile    string `json:"keyFile"`
	CAFile     string `json:"caFile"`
	CertData   []byte `json:"certData"`
	KeyData    []byte `json:"keyData"`
	CAData     []byte `json:"caData"`
}

// ManagedResource is an extended resource that an extender gives away.
type ManagedResource struct {
	Name               string `json:"name"`
	IgnoredByScheduler bool   `json:"ignoredByScheduler"`
}

// Load parses and translates the text of a policy.
func Load(text []byte) (*Translation, error) {
	p, err := Parse(text)
	if err != nil {
		return nil, err
	}
	return Translate(p)
}

// at is an error with its line.
func at(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", line, fmt.Sprintf(format, args...))
}
