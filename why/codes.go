package why

// Code is a stable name of a cause, for programs.
type Code string

// The codes. docs/why.md lists them; a test compares the two.
const (
	// Of any object.

	OK                Code = "OK"                // as it should be
	InProgress        Code = "InProgress"        // on its way, without a fault
	NotFound          Code = "NotFound"          // the object does not exist
	Deleted           Code = "Deleted"           // the object does not exist any more, and the record says who deleted it
	Deleting          Code = "Deleting"          // being deleted, and that takes its time
	FinalizerHolds    Code = "FinalizerHolds"    // deleted, but a finalizer keeps the object
	ConditionNotTrue  Code = "ConditionNotTrue"  // a condition of the object says that something is wrong
	EventWarns        Code = "EventWarns"        // a warning Event of the last hour, which no field confirms: no fault
	ObservationBehind Code = "ObservationBehind" // its controller has not seen the object's last change

	// Pods: scheduling.

	InsufficientResources Code = "InsufficientResources" // no node has the CPU, memory or other resource that the pod requests
	NodeSelectorMismatch  Code = "NodeSelectorMismatch"  // no node matches the nodeSelector or node affinity
	TaintNotTolerated     Code = "TaintNotTolerated"     // every node that would do has a taint that the pod does not tolerate
	NodesCordoned         Code = "NodesCordoned"         // every node that would do is cordoned
	PodAffinityUnmet      Code = "PodAffinityUnmet"      // no node has the pods near which this one must run
	PodAntiAffinity       Code = "PodAntiAffinity"       // every node that would do has a pod near which this one must not run
	TopologySpread        Code = "TopologySpread"        // every node that would do breaks a topologySpreadConstraint
	HostPortTaken         Code = "HostPortTaken"         // the host port is in use on every node that would do
	SchedulingMixed       Code = "SchedulingMixed"       // the nodes refuse the pod for different reasons
	VolumePlacement       Code = "VolumePlacement"       // no node can reach the pod's volumes
	SchedulerRefuses      Code = "SchedulerRefuses"      // the scheduler refuses for a reason that only its message has, such as a plugin's
	SchedulingGated       Code = "SchedulingGated"       // a scheduling gate holds the pod back
	SchedulerUnknown      Code = "SchedulerUnknown"      // no scheduler of the name in schedulerName takes the pod
	SchedulerSilent       Code = "SchedulerSilent"       // the scheduler has not handled the pod
	NoNodes               Code = "NoNodes"               // the cluster has no node
	Preempted             Code = "Preempted"             // the pod gave way to one of higher priority

	// Pods: the node, volumes and network.

	NodeNotReady     Code = "NodeNotReady"     // the node does not report, or reports that it is not ready
	NodeGone         Code = "NodeGone"         // the node does not exist
	NodePressure     Code = "NodePressure"     // the node is short of memory, disk or process ids, or has no network
	NodeCordoned     Code = "NodeCordoned"     // the node takes no new pods: no fault
	NodeRefused      Code = "NodeRefused"      // the kubelet did not admit the pod
	ConfigMapMissing Code = "ConfigMapMissing" // a ConfigMap does not exist
	SecretMissing    Code = "SecretMissing"    // a Secret does not exist
	KeyMissing       Code = "KeyMissing"       // a ConfigMap or Secret does not have the requested key
	HostPathType     Code = "HostPathType"     // the path on the node is missing or of another type
	ClaimMissing     Code = "ClaimMissing"     // a PersistentVolumeClaim does not exist
	ClaimUnbound     Code = "ClaimUnbound"     // a PersistentVolumeClaim is not bound
	DriverMissing    Code = "DriverMissing"    // the node has no CSI driver of that name
	DriverFailing    Code = "DriverFailing"    // a call of the CSI driver fails
	VolumeFailing    Code = "VolumeFailing"    // a volume cannot be attached or mounted
	MountFailed      Code = "MountFailed"      // a volume cannot be mounted into the container
	SubPathFailed    Code = "SubPathFailed"    // a subPath cannot be mounted
	NetworkFailing   Code = "NetworkFailing"   // the pod's network cannot be set up: a CNI program fails
	SandboxFailing   Code = "SandboxFailing"   // the pod's sandbox cannot be created
	RunAsRootRefused Code = "RunAsRootRefused" // runAsNonRoot is set, and the image would run as root

	// Pods: images.

	ImageNotFound       Code = "ImageNotFound"       // the registry has no such image or tag
	ImageNameInvalid    Code = "ImageNameInvalid"    // the image's name cannot be parsed
	ImageArchitecture   Code = "ImageArchitecture"   // the image is not for the node's architecture
	ImageNeverPulled    Code = "ImageNeverPulled"    // imagePullPolicy is Never, and the node has no such image
	PullSecretMissing   Code = "PullSecretMissing"   // the registry wants credentials, and the pod has none that exist
	PullSecretWrong     Code = "PullSecretWrong"     // the registry refuses the credentials of the pull secret
	PullDenied          Code = "PullDenied"          // the registry refuses
	RegistryUnreachable Code = "RegistryUnreachable" // the registry does not answer
	RegistryLimit       Code = "RegistryLimit"       // the registry's rate limit is reached
	PullFailed          Code = "PullFailed"          // the image cannot be pulled for another reason

	// Pods: containers.

	ExecutableNotFound  Code = "ExecutableNotFound"  // the image lacks the program that the container runs
	PermissionDenied    Code = "PermissionDenied"    // the program may not be executed
	InitContainerFailed Code = "InitContainerFailed" // an init container ends with an error
	CrashLoop           Code = "CrashLoop"           // a container keeps exiting
	ContainerFailed     Code = "ContainerFailed"     // a container has failed and is not started again, or cannot be started
	OOMKilled           Code = "OOMKilled"           // a container reached its memory limit
	LivenessKills       Code = "LivenessKills"       // the kubelet kills a container whose liveness probe fails
	StartupProbeKills   Code = "StartupProbeKills"   // the kubelet kills a container whose startup probe fails
	StartupProbeFailing Code = "StartupProbeFailing" // the startup probe has not succeeded
	ReadinessFailing    Code = "ReadinessFailing"    // the readiness probe fails
	ReadinessGate       Code = "ReadinessGate"       // a readiness gate's condition is not True
	PostStartFailed     Code = "PostStartFailed"     // the postStart hook fails
	PreStopFailed       Code = "PreStopFailed"       // the preStop hook failed
	KillFailing         Code = "KillFailing"         // the pod should have ended, and its node has not reported it
	DeadlineExceeded    Code = "DeadlineExceeded"    // activeDeadlineSeconds are over
	Evicted             Code = "Evicted"             // the node was short of something, or the pod exceeded a limit of storage
	Completed           Code = "Completed"           // all containers have ended without an error: no fault

	// Claims.

	StorageClassMissing Code = "StorageClassMissing" // the claim's StorageClass does not exist
	NoDefaultClass      Code = "NoDefaultClass"      // the claim names no StorageClass, and no class is the default
	NoVolumeFits        Code = "NoVolumeFits"        // no PersistentVolume fits the claim, and nothing creates one
	ClaimWaits          Code = "ClaimWaits"          // the claim waits for a pod that uses it: no fault
	ProvisionerMissing  Code = "ProvisionerMissing"  // the provisioner of the claim's class does not run
	ProvisioningFailing Code = "ProvisioningFailing" // the provisioner tries to create the volume and fails
	NoCapacity          Code = "NoCapacity"          // no place has enough free space for the volume
	ClaimLost           Code = "ClaimLost"           // the claim's volume is gone
	ResizeFailing       Code = "ResizeFailing"       // the volume cannot grow
	ClaimInUse          Code = "ClaimInUse"          // the claim was deleted, and pods use it

	// Admission: what a controller may not create.

	QuotaExceeded         Code = "QuotaExceeded"         // a ResourceQuota is used up
	QuotaNeedsRequests    Code = "QuotaNeedsRequests"    // a ResourceQuota counts what the pod does not request
	LimitRangeDenied      Code = "LimitRangeDenied"      // a LimitRange refuses the pod's requests or limits
	PodSecurityDenied     Code = "PodSecurityDenied"     // the namespace's Pod Security level refuses the pod
	PolicyDenied          Code = "PolicyDenied"          // a ValidatingAdmissionPolicy refuses
	WebhookDenied         Code = "WebhookDenied"         // an admission webhook refuses
	WebhookUnreachable    Code = "WebhookUnreachable"    // an admission webhook that must answer cannot be called
	ServiceAccountMissing Code = "ServiceAccountMissing" // the pod's ServiceAccount does not exist
	PriorityClassMissing  Code = "PriorityClassMissing"  // the pod's PriorityClass does not exist
	CreateRefused         Code = "CreateRefused"         // the API server refuses an object for another reason

	// Workloads.

	ScaledToZero        Code = "ScaledToZero"        // it wants no pods: no fault
	RolloutPaused       Code = "RolloutPaused"       // the Deployment is paused, and a change waits
	ProgressDeadline    Code = "ProgressDeadline"    // the rollout made no progress within its deadline
	RolloutNoRoom       Code = "RolloutNoRoom"       // maxSurge and maxUnavailable both round to zero; ruled out only: pods are then replaced one by one
	PredecessorNotReady Code = "PredecessorNotReady" // a pod of a StatefulSet waits for the one before it
	PartitionHolds      Code = "PartitionHolds"      // the update strategy of the StatefulSet keeps pods on the previous template: no fault
	NoNodeMatches       Code = "NoNodeMatches"       // no node matches the DaemonSet

	// Jobs.

	JobBackoffLimit  Code = "JobBackoffLimit"  // the pods of the job failed more often than its backoffLimit allows
	JobDeadline      Code = "JobDeadline"      // the job was not complete within its activeDeadlineSeconds
	JobFailurePolicy Code = "JobFailurePolicy" // a rule of podFailurePolicy ended the job
	JobIndexesFailed Code = "JobIndexesFailed" // indexes of the job failed
	JobSuspended     Code = "JobSuspended"     // the job is suspended: no fault
	CronJobSuspended Code = "CronJobSuspended" // the CronJob is suspended: no fault
	TimeZoneInvalid  Code = "TimeZoneInvalid"  // the CronJob's time zone does not exist
	ScheduleInvalid  Code = "ScheduleInvalid"  // the CronJob's schedule cannot be parsed
	ScheduleMissed   Code = "ScheduleMissed"   // the CronJob was due and has started no job
	RunForbidden     Code = "RunForbidden"     // the CronJob skips a run as the job before still runs: no fault

	// Services.

	NoSelector             Code = "NoSelector"             // the Service has no selector and no endpoints
	SelectorMatchesNothing Code = "SelectorMatchesNothing" // no pod has the labels that the Service selects
	TargetPortMissing      Code = "TargetPortMissing"      // no pod has a container port of the name in targetPort
	PodsNotReady           Code = "PodsNotReady"           // the pods of the Service have ended
	NoEndpoints            Code = "NoEndpoints"            // the Service has no ready endpoint for another reason
	LoadBalancerPending    Code = "LoadBalancerPending"    // the Service has no address of a load balancer

	// Autoscalers.

	ScaleTargetMissing Code = "ScaleTargetMissing" // the object that the autoscaler scales does not exist, or its scale cannot be read
	MetricsMissing     Code = "MetricsMissing"     // the autoscaler gets no metrics
	RequestsMissing    Code = "RequestsMissing"    // the autoscaler scales by the share of a request that the pods do not make
	AtMaximum          Code = "AtMaximum"          // the autoscaler wants more replicas than maxReplicas allows

	// Namespaces.

	NamespaceRemains Code = "NamespaceRemains" // the namespace was deleted, and objects in it cannot go
	APIUnavailable   Code = "APIUnavailable"   // an API group does not answer, so what the namespace holds is unknown

	// Rights (`kubelith why --as`).

	AccessAllowed      Code = "AccessAllowed"      // the user may do it
	AccessDenied       Code = "AccessDenied"       // no rule of the user's roles is about it
	VerbMissing        Code = "VerbMissing"        // a rule is about it, without the verb
	GroupMissing       Code = "GroupMissing"       // a rule names the resource in another API group
	SubresourceMissing Code = "SubresourceMissing" // a rule names the resource without the subresource
	RuleNamesOthers    Code = "RuleNamesOthers"    // a rule allows it for objects of other names
	RoleMissing        Code = "RoleMissing"        // the user is bound to a role that does not exist
	SubjectDiffers     Code = "SubjectDiffers"     // a binding names another subject: its kind, namespace or case differs
	OtherNamespace     Code = "OtherNamespace"     // it is allowed in another namespace

	// Ways (`kubelith why --cannot-reach`).

	Reachable       Code = "Reachable"       // nothing in the API blocks the connection
	OutsideCluster  Code = "OutsideCluster"  // the Service is a DNS alias of a name outside the cluster: no fault
	PodNotRunning   Code = "PodNotRunning"   // one end of the connection has ended
	PortNotServed   Code = "PortNotServed"   // the Service does not have the port
	NobodyListens   Code = "NobodyListens"   // the pod refuses connections at the port
	PodUnreachable  Code = "PodUnreachable"  // packets to the pod get lost
	NoClusterDNS    Code = "NoClusterDNS"    // the pod does not use the cluster's DNS
	ClusterDNSDown  Code = "ClusterDNSDown"  // the cluster's DNS has no endpoint
	NodeNetworkDown Code = "NodeNetworkDown" // a node has no network for pods
	PolicyForbids   Code = "PolicyForbids"   // a network policy blocks the connection
)
