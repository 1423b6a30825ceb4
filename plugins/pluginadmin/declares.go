package pluginadmin

import (
	"encoding/json"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	storagev1 "k8s.io/api/storage/v1"

	"google.golang.org/protobuf/encoding/protojson"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Declares returns what the plugin declares in its description, as lines for the operator.
func (p Plugin) Declares() ([]string, error) {
	if len(p.Description) == 0 {
		return nil, nil
	}
	var d pluginv1.Description
	// The server may be newer than this program.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(p.Description, &d); err != nil {
		return nil, fmt.Errorf("cannot read the description of plugin %s: use the same version of kubelith as the server: %w", p.Name, err)
	}
	switch {
	case d.GetAdmission() != nil:
		return admissionLines(d.GetAdmission()), nil
	case d.GetScheduling() != nil:
		return schedulingLines(d.GetScheduling()), nil
	case d.GetStorage() != nil:
		return storageLines(d.GetStorage()), nil
	}
	return nil, nil
}

func admissionLines(d *pluginv1.AdmissionDescription) []string {
	var out []string
	for _, raw := range d.GetMutating() {
		var hook admissionregistrationv1.MutatingWebhook
		if err := json.Unmarshal(raw, &hook); err == nil { // the host has validated it
			out = append(out, hookLine("mutating", hook.Name, hook.Rules, hook.FailurePolicy, hook.TimeoutSeconds))
		}
	}
	for _, raw := range d.GetValidating() {
		var hook admissionregistrationv1.ValidatingWebhook
		if err := json.Unmarshal(raw, &hook); err == nil {
			out = append(out, hookLine("validating", hook.Name, hook.Rules, hook.FailurePolicy, hook.TimeoutSeconds))
		}
	}
	return out
}

func hookLine(what, name string, rules []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.FailurePolicyType, seconds *int32) string {
	line := fmt.Sprintf("%s hook %s:", what, name)
	for i, r := range rules {
		if i > 0 {
			line += ";"
		}
		var operations, resources []string
		for _, o := range r.Operations {
			operations = append(operations, string(o))
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				if group != "" {
					resource += "." + group
				}
				resources = append(resources, resource)
			}
		}
		line += " " + strings.Join(operations, ", ") + " of " + strings.Join(resources, ", ")
	}
	if policy != nil {
		line += fmt.Sprintf("; failure policy %s", *policy)
	}
	if seconds != nil {
		line += fmt.Sprintf("; timeout %ds", *seconds)
	}
	return line
}

func schedulingLines(d *pluginv1.SchedulingDescription) []string {
	var out []string
	if d.GetFilter() {
		line := "filters nodes"
		if d.GetFilterUsesPods() {
			line += ", also by their pods: preemption calls it again"
		}
		if d.GetUnresolvable() {
			line += ", preemption cannot help"
		}
		out = append(out, line)
	}
	if d.GetScore() {
		out = append(out, fmt.Sprintf("scores nodes with weight %d", max(d.GetWeight(), 1)))
	}
	if d.GetFullPod() {
		out = append(out, "needs whole pods: pods of its profiles are not scheduled in batches")
	}
	policy := "Ignore"
	if d.GetFailurePolicy() == pluginv1.FailurePolicy_FAILURE_POLICY_FAIL {
		policy = "Fail"
	}
	out = append(out, "failure policy "+policy)
	if d.GetTimeout() != nil {
		out = append(out, "timeout "+d.GetTimeout().AsDuration().String())
	}
	return out
}

func storageLines(d *pluginv1.StorageDescription) []string {
	var out []string
	var driver storagev1.CSIDriver
	if err := json.Unmarshal(d.GetCsiDriver(), &driver); err == nil {
		out = append(out, "CSI driver "+driver.Name)
	}
	for _, raw := range d.GetStorageClasses() {
		var class storagev1.StorageClass
		if err := json.Unmarshal(raw, &class); err == nil {
			out = append(out, "StorageClass "+class.Name)
		}
	}
	if d.GetNodeLocal() {
		out = append(out, "each node provisions its own volumes")
	}
	return out
}
