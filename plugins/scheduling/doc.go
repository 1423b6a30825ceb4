// Package scheduling adds scheduling plugins to kube-scheduler. Each is a plugin of upstream's scheduler framework that
// calls the plugin's process once per pod to filter all nodes (in PreFilter) and once to score those that passed (in
// PreScore).
//
// Messages are small: nodes are sent when they change (snapshotcache.go). Preemption and nominated pods try
// hypothetical nodes, with some pods added or removed; those are sent one by one (results.go). A process that is
// missing, slow or wrong delays a pod by the plugin's timeout at most; then its failure policy decides (remote.go).
//
// The set of plugins and their weights are fixed when the scheduler starts; processes come and go while it runs.
package scheduling
