package policy

import (
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"kubelith.io/kubelith/components/cluster/scheduler/removed"
)

// predicates are the filters of each predicate. Those without one do nothing unless they have an argument.
func predicates() map[string][]string {
	return map[string][]string{
		"CheckNodeLabelPresence":  nil,
		"CheckNodeUnschedulable":  {names.NodeUnschedulable},
		"CheckServiceAffinity":    nil,
		"CheckVolumeBinding":      {names.VolumeBinding},
		"EvenPodsSpread":          {names.PodTopologySpread},
		"GeneralPredicates":       {names.NodeResourcesFit, names.NodeName, names.NodePorts, names.NodeAffinity},
		"HostName":                {names.NodeName},
		"MatchInterPodAffinity":   {names.InterPodAffinity},
		"MatchNodeSelector":       {names.NodeAffinity},
		"MaxAzureDiskVolumeCount": {names.NodeVolumeLimits},
		allVolumeCounts:           {names.NodeVolumeLimits},
		"MaxCinderVolumeCount":    {names.NodeVolumeLimits},
		"MaxEBSVolumeCount":       {names.NodeVolumeLimits},
		"MaxGCEPDVolumeCount":     {names.NodeVolumeLimits},
		"NoDiskConflict":          {names.VolumeRestrictions},
		"NoVolumeZoneConflict":    {names.VolumeZone},
		"PodFitsHostPorts":        {names.NodePorts},
		"PodFitsPorts":            {names.NodePorts}, // the name before Kubernetes 1.0
		"PodFitsResources":        {names.NodeResourcesFit},
		"PodToleratesNodeTaints":  {names.TaintToleration},
	}
}

// allVolumeCounts is the predicate that counted the volumes of all CSI drivers.
const allVolumeCounts = "MaxCSIVolumeCountPred"

// mandatoryFilters run with every policy.
func mandatoryFilters() []string { return []string{names.NodeUnschedulable, names.TaintToleration} }

// defaultPredicates stand for an absent list.
func defaultPredicates() []Predicate {
	var all []Predicate
	for _, name := range []string{"NoVolumeZoneConflict", "MaxEBSVolumeCount", "MaxGCEPDVolumeCount", "MaxAzureDiskVolumeCount",
		"MaxCSIVolumeCountPred", "MatchInterPodAffinity", "NoDiskConflict", "GeneralPredicates", "PodToleratesNodeTaints",
		"CheckVolumeBinding", "CheckNodeUnschedulable", "EvenPodsSpread"} {
		all = append(all, Predicate{Name: name})
	}
	return all
}

// Priorities that need more than a plugin with their weight.
const (
	equal          = "EqualPriority"
	evenSpread     = "EvenPodsSpreadPriority"
	selectorSpread = "SelectorSpreadPriority"
	leastRequested = "LeastRequestedPriority"
	mostRequested  = "MostRequestedPriority"
	capacityRatio  = "RequestedToCapacityRatioPriority"
)

// priorities are the plugin that scores for each priority; "": see Translate.
func priorities() map[string]string {
	return map[string]string{
		"BalancedResourceAllocation":  names.NodeResourcesBalancedAllocation,
		equal:                         "",
		evenSpread:                    names.PodTopologySpread,
		"ImageLocalityPriority":       names.ImageLocality,
		"InterPodAffinityPriority":    names.InterPodAffinity,
		leastRequested:                removed.NodeResourcesLeastAllocated,
		mostRequested:                 removed.NodeResourcesMostAllocated,
		"NodeAffinityPriority":        names.NodeAffinity,
		"NodePreferAvoidPodsPriority": removed.NodePreferAvoidPods,
		selectorSpread:                names.PodTopologySpread,
		"ServiceSpreadingPriority":    names.PodTopologySpread, // the name of SelectorSpreadPriority before Kubernetes 1.0
		"TaintTolerationPriority":     names.TaintToleration,
	}
}

// defaultPriorities stand for an absent list.
func defaultPriorities() []Priority {
	return []Priority{
		{Name: selectorSpread, Weight: 1}, {Name: "InterPodAffinityPriority", Weight: 1}, {Name: leastRequested, Weight: 1},
		{Name: "BalancedResourceAllocation", Weight: 1}, {Name: "NodePreferAvoidPodsPriority", Weight: 10000},
		{Name: "NodeAffinityPriority", Weight: 1}, {Name: "TaintTolerationPriority", Weight: 1},
		{Name: "ImageLocalityPriority", Weight: 1}, {Name: evenSpread, Weight: 2},
	}
}

// gone returns what to do about names that Kubernetes removed before 1.22.
func gone() map[string]string {
	const tainted = "remove it: a node with this condition has a taint, and PodToleratesNodeTaints, which is always on, checks it"
	return map[string]string{
		"CheckNodeCondition":              tainted,
		"CheckNodeDiskPressure":           tainted,
		"CheckNodeMemoryPressure":         tainted,
		"CheckNodePIDPressure":            tainted,
		"NoVolumeNodeConflict":            "use CheckVolumeBinding",
		"PodToleratesNodeNoExecuteTaints": "remove it: PodToleratesNodeTaints, which is always on, checks these taints",
		"ResourceLimitsPriority":          "remove it",
	}
}

// scorers are all plugins that can score for a priority, in the order of the profile, and whether they prepare it.
func scorers() []scorer {
	return []scorer{
		{names.TaintToleration, true}, {names.NodeAffinity, true}, {names.NodeResourcesFit, true},
		{removed.NodeResourcesLeastAllocated, true}, {removed.NodeResourcesMostAllocated, true}, {removed.RequestedToCapacityRatio, true},
		{names.PodTopologySpread, true}, {names.InterPodAffinity, true}, {names.NodeResourcesBalancedAllocation, true},
		{names.ImageLocality, false}, {removed.NodeLabel, false}, {removed.ServiceAffinity, false}, {removed.NodePreferAvoidPods, false},
	}
}

type scorer struct {
	name     string
	prepares bool // it has the extension point preScore
}
