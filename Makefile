# Kubelith. `make help` lists the targets; see README.md.
SHELL := /bin/bash
.DEFAULT_GOAL := help

ARCH ?= $(shell go env GOARCH)
GO ?= go
include payload.mk
-include lint.mk bench/bench.mk

# Every go command here has these settings, so that build, vet, lint and test share one cache.
# fieldsv1string: equal managed fields are in memory once (docs/adr/070-managed-fields-once.md).
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -tags=no_btrfs,no_devmapper,no_zfs,fieldsv1string

# Every go command works with upstream's source as patches/ changes it (docs/adr/038-patch-of-the-kubelet.md).
# make UNPATCHED=1 TARGET works with upstream's source as it is.
export UNPATCHED
ifndef UNPATCHED
ifneq ($(filter-out help deps deps-dist stop clean size,$(or $(MAKECMDGOALS),help)),)
ifneq ($(shell scripts/patch.sh kubernetes || echo failed),)
$(error build: upstream's source is not patched, see above)
endif
GOFLAGS += -modfile=$(CURDIR)/.cache/patched/go.mod
endif
endif

KUBERNETES := $(shell sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod)
KUBELITH := $(shell git describe --tags --always --abbrev=12 --dirty 2>/dev/null || echo dev)
DATE := $(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo 1970-01-01T00:00:00Z)
STAMP := k8s.io/component-base/version
CLIENT_STAMP := k8s.io/client-go/pkg/version
minor = $(word 2,$(subst ., ,$(KUBERNETES)))
CONTAINERD := $(shell sed -n 's/^\tgithub.com\/containerd\/containerd\/v2 v\([0-9.]*\).*/\1/p' go.mod)
LDFLAGS := -s -w -X github.com/containerd/containerd/v2/version.Version=$(CONTAINERD) -X kubelith.io/kubelith/cmd/kubelith.Version=$(KUBELITH) \
	-X $(STAMP).gitVersion=$(KUBERNETES)+kubelith -X $(STAMP).gitMajor=1 -X $(STAMP).gitMinor=$(minor) -X $(STAMP).gitTreeState=clean \
	-X $(STAMP).gitCommit=$(shell git rev-parse -q --verify HEAD 2>/dev/null || echo unknown) \
	-X $(STAMP).buildDate=$(DATE)

.PHONY: help build
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

build: bin/kubelith bin/kubelith-plugin-check ## build bin/kubelith, and bin/kubelith-plugin-check for `kubelith plugin check`

.PHONY: bin/kubelith bin/kubelith-plugin-check
bin/kubelith: payload images
	@echo "build: compiling Kubernetes $(KUBERNETES) into bin/kubelith (6 minutes the first time, seconds after)"
	GOARCH=$(ARCH) $(GO) build -ldflags '$(LDFLAGS)' -o $@ .
	@ln -sf kubelith bin/kubectl

bin/kubelith-plugin-check:
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w' -o $@ ./cmd/kubelith-plugin-check

.PHONY: deps deps-dist run stop
deps: ## install the Debian packages that build, run and test require
	@scripts/deps.sh $(PAYLOAD_PACKAGES)

deps-dist: ## install the additional packages for dist: C compiler and libseccomp of the other architecture
	@scripts/deps.sh $(PAYLOAD_PACKAGES) $(PAYLOAD_PACKAGES_DIST)

run: deps build ## start a cluster with an application on this machine, and show that it answers
	@scripts/run.sh

stop: ## end the cluster of `make run` and remove everything it left
	@scripts/stop.sh

# Packages of our own, and among them those that start clusters.
# The Go library is a module of its own (cluster/go.mod).
library := kubelith.io/kubelith/cluster
packages := $(library) $(shell $(GO) list ./... 2>/dev/null | grep -v -e /integration -e /bench/compare -e /bench/requests -e /bench/network)

.PHONY: test unit race integration compiled
# First what most often fails, then the real clusters, and the unit tests last, of which some minutes remain. Clusters wait for something most of
# the time: what only compiles gets the processors then.
test: deps test-packages lint-quick build ## lint, unit tests, real clusters, a sample of upstream's conformance tests
	@scripts/idle.sh $(MAKE) --no-print-directory compiled & idle=$$!; trap "kill -- -$$idle 2>/dev/null" EXIT; \
	$(MAKE) --no-print-directory integration-first && wait $$idle
	$(MAKE) --no-print-directory integration-rest
	$(MAKE) --no-print-directory unit
	@$(conformance_suite) --where >/dev/null 2>&1 && echo "test: all passed" || \
		echo "test: all passed, but upstream's conformance tests were not run: there is no suite (make conformance-suite says why)"

# What test needs besides build, and needs no cluster. go list compiles tests without linking them, which unit has to do again anyway.
compiled: lint-compiled integration-tools
	CGO_ENABLED=1 $(GO) $(compile_tests) -race $(raced)
	$(GO) $(compile_tests) -p 3 $(patched_volumes) $(patched_workers) $(patched_history) $(patched_others) $(unit_packages)
	GOFLAGS=-trimpath $(GO) -C tools $(compile_tests) ./release ./robustness

compile_tests := list -export -test -f '{{""}}'

# The tests of these do many things at once and link little of upstream, which would all be compiled again for the race detector.
raced := $(addprefix ./base/,jointoken lifecycle client config logging pki) \
	$(addprefix ./components/,cluster/approver cluster/servicelb cluster/token worker/join worker/network worker/podlink) \
	./components/node/crashes ./components/node/progress ./plugins/credentials ./plugins/host ./plugins/process ./runtime/shim ./runtime/tasks ./trace/record ./trace/spans

# Upstream's packages that our patches change.
patched_volumes := k8s.io/kubernetes/pkg/kubelet/volumemanager/...
patched_workers := k8s.io/kubernetes/pkg/kubelet
patched_history := k8s.io/apiserver/pkg/storage/cacher
patched_others := k8s.io/kubernetes/pkg/controller/volume/attachdetach/reconciler k8s.io/kubernetes/pkg/controller/nodelifecycle/scheduler \
	github.com/kubernetes-csi/csi-lib-utils/slowset k8s.io/apiserver/pkg/server/mux github.com/emicklei/go-restful/v3
unit_packages = $(filter-out $(patsubst ./%,kubelith.io/kubelith/%,$(raced)),$(packages))

unit: race ## unit tests: no root, no network
	@# make lint vets all of it, with more analyzers. Some of upstream's tests wait for two minutes. In those that are skipped, with 10 and 20 pods, as many
	@# goroutines overwrite each other's reports of volumes in use, so that a volume may wait for minutes.
	$(GO) test -vet=off -p 3 -skip 'TestWaitForAllPodsUnmount/timeout_errors' $(patched_volumes) $(patched_others) $(unit_packages)
	$(GO) test -vet=off -run 'AwaitReady|RegisterWithApiServer|PreInit|UpdatePod|CompleteWork|TerminalPhase|SyncKnownPods|TerminatedWorker|KillPodNow|EffectiveGracePeriod' $(patched_workers)
	$(GO) test -vet=off -run 'History|WatchCache|DynamicCache|CacheInterval|Bookmark|Snapshot' $(patched_history)
	$(MAKE) --no-print-directory payload-test
	GOFLAGS=-trimpath $(GO) -C cluster build . # with the client-go that it asks of other modules
	GOFLAGS=-trimpath $(GO) -C tools test ./release ./robustness

race: ## the unit tests of what does many things at once, under the race detector
	CGO_ENABLED=1 $(GO) test -vet=off -race $(raced)

# Limits are four times as long (KUBELITH_TEST_PATIENCE), for a busy machine; a test that passes takes no longer for it.
integration_test = KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_TEST_PATIENCE=4 KUBELITH_BIN=$(CURDIR)/bin/kubelith \
	KUBELITH_CONFORMANCE_SUITE=$$($(conformance_suite) --where) $(GO) test -vet=off -count=1 -timeout 1h
# These take long, or need a tool or a suite that takes minutes to compile. Of all but the servers two packages run at a time: they wait most of the time.
integration_rest := $(addprefix kubelith.io/kubelith/integration/,conformance hardening policyfuzz process restart runtimes scheduler snapshots trace \
	upgrade why)
# This has twelve servers at a time.
integration_servers := kubelith.io/kubelith/integration/servers

.PHONY: integration-first integration-rest integration-tools test-packages
integration: build integration-tools integration-first integration-rest ## tests on real clusters, each in namespaces of its own (root)

integration-first: test-packages cni-plugins
	$(integration_test) -p 2 $(library) $(filter-out $(integration_rest) $(integration_servers),$(shell $(GO) list ./integration/... 2>/dev/null))

integration-rest:
	$(integration_test) -p 2 $(integration_rest)
	$(integration_test) $(integration_servers)

test-packages:
	-@scripts/deps.sh chromium # for the page of kubelith trace; its test says so where there is none
	-@scripts/deps.sh $(suite_packages)

integration-tools: kube-bench robustness
	-$(MAKE) --no-print-directory conformance-suite

.PHONY: why-score
why-score: build ## how many of the broken manifests in integration/why/cases `kubelith why` is right about, beside kubectl describe (root)
	@mkdir -p .cache
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_WHY_SCORE=$(CURDIR)/.cache/why-score \
		$(GO) test -count=1 ./integration/why -run TestCases >.cache/why-score.log; status=$$?; cat .cache/why-score; exit $$status

.PHONY: fuzz
fuzz: ## run every fuzz target for a minute: make fuzz [FUZZTIME=1m] [FUZZ=name]
	@scripts/fuzz.sh

.PHONY: soak
SOAK ?= 10m
soak: bin/kubelith ## inject random faults into a real server: make soak [SOAK=10m] [SEED=N] [CLOCK=yes: sets this machine's clock]
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_SOAK=$(SOAK) KUBELITH_SOAK_SEED=$(SEED) KUBELITH_SOAK_CLOCK=$(CLOCK) \
		$(GO) test -count=1 -v -timeout 0 ./integration/soak

.PHONY: policy-fuzz
CASES ?= 2000
policy-fuzz: ## compare network policies with another implementation, by packets: make policy-fuzz [CASES=2000] [SEED=N] (root)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_POLICY_FUZZ=$(CASES) KUBELITH_POLICY_FUZZ_SEED=$(or $(SEED),$(shell date +%s)) \
		$(GO) test -count=1 -v -timeout 0 ./integration/policyfuzz -run 'TestFuzz$$'

.PHONY: juicefs-test
juicefs_suite := $(GO) run ./integration/juicefs/suite
juicefs-test: build ## build JuiceFS' CSI driver and its sidecars, in ~/.cache/kubelith, and install them in a cluster (root)
	$(juicefs_suite)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_JUICEFS_SUITE=$$($(juicefs_suite) --where) \
		$(GO) test -count=1 -v ./integration/juicefs

.PHONY: policy-race
policy-race: build ## 500 pods whose first instruction is forbidden, and 20 kill -9 under traffic (root, 7 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith POLICY_PODS=500 POLICY_KILLS=20 \
		$(GO) test -count=1 -v -timeout 30m ./integration/policy -run 'TestFirstPacket|TestDead'

.PHONY: vip-faults
vip-faults: build ## the server that carries the virtual address is stopped, paused, cut off and killed, 5 times each (root, 6 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith VIP_ROUNDS=5 \
		$(GO) test -count=1 -v -timeout 30m ./integration/servers -run 'TestLostServers$$/VirtualAddress$$'

.PHONY: policy-scale
policy-scale: build ## how long changes of policies take with 5,000 pods and 500 policies (root, 2 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_POLICY_SCALE=1 \
		$(GO) test -count=1 -v -timeout 30m ./integration/policy -run 'TestScale$$'

.PHONY: certificates-test
certificates-test: build ## certificates that live for minutes, and new CAs, with a connection of each kind open meanwhile (root, 12 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_TEST_RENEWAL=1 \
		$(GO) test -count=1 -v -timeout 30m ./integration/servers -run '^(TestRenewal|TestRotateCA|TestRotateCAAway)$$'

.PHONY: policy-conformance
policy-conformance: build ## the conformance suite of ClusterNetworkPolicies on a server and an agent, with pods of either family first (root, 13 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_POLICY_CONFORMANCE=1 \
		$(GO) test -count=1 -v -timeout 30m ./integration/policy -run 'TestClusterPolicyConformance$$'

.PHONY: policy-cyclonus
policy-cyclonus: build ## every case that cyclonus generates about network policies, on a server and an agent (root, 40 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_POLICY_CYCLONUS=1 \
		$(GO) test -count=1 -v -timeout 2h ./integration/policy -run 'TestCyclonus$$'

.PHONY: upgrade-test
UPGRADE_FROM ?= a342403
upgrade_from := .cache/upgrade-test/$(UPGRADE_FROM)
upgrade-test: build $(upgrade_from)/bin/kubelith ## upgrade from an older commit's build, and back: make upgrade-test [UPGRADE_FROM=COMMIT] (root, builds that first)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_UPGRADE_FROM=$(CURDIR)/$(upgrade_from)/bin/kubelith \
		$(GO) test -count=1 -v ./integration/upgrade -run 'TestFrom$$'

.PHONY: upgrade-cluster-test
upgrade-cluster-test: build ## upgrade two servers and two agents with one command, also to a program that fails, and past a budget that allows no eviction (root, 5 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_UPGRADE_CLUSTER_FAILURE=1 \
		$(GO) test -count=1 -v -timeout 30m ./integration/upgrade -run 'TestCluster$$/all_nodes'

# Without this Makefile's settings: that commit has its own.
$(upgrade_from)/bin/kubelith:
	rm -rf $(upgrade_from)
	mkdir -p $(upgrade_from)
	git archive $(UPGRADE_FROM) | tar -x -C $(upgrade_from)
	env -u GOFLAGS -u CGO_ENABLED -u MAKEFLAGS -u MAKELEVEL $(MAKE) -C $(upgrade_from) KUBELITH=$(UPGRADE_FROM) build

.PHONY: kube-bench
KUBE_BENCH := .cache/tools/kube-bench
kube-bench: $(KUBE_BENCH) ## build kube-bench, for the CIS benchmark (scripts/cis.sh)

$(KUBE_BENCH): tools/go.mod tools/go.sum
	GOARCH= GOFLAGS=-trimpath $(GO) -C tools build -o $(CURDIR)/$@ github.com/aquasecurity/kube-bench

.PHONY: robustness
ROBUSTNESS := .cache/tools/robustness
robustness: $(ROBUSTNESS) ## build what checks a cluster's etcd with the validators of etcd's own robustness tests

$(ROBUSTNESS): tools/go.mod tools/go.sum $(wildcard tools/robustness/*.go)
	GOARCH= GOFLAGS=-trimpath $(GO) -C tools build -o $(CURDIR)/$@ ./robustness

.PHONY: conformance-suite conformance-suite-there
conformance_suite := $(GO) run ./integration/conformance/suite
suite_packages := bind9-dnsutils netcat-openbsd
conformance-suite: ## build upstream's e2e.test and images for a sample of its tests, in ~/.cache/kubelith
	@scripts/deps.sh $(suite_packages)
	$(conformance_suite)

conformance-suite-there:
	@$(conformance_suite) --where >/dev/null 2>&1

.PHONY: conformance storage-conformance vm-test vm-soak vm-policy-test vm-nodes-test vm-servers-test vagrant-validate vagrant-test openrc-test dist clean
conformance: build ## upstream's conformance suite on a fresh cluster: make conformance E2E_DIR=... [NODES=1] [DUAL_STACK=yes|ipv6] [FOCUS=...] [PROCS=4]
	scripts/conformance.sh

DRIVER ?= local
storage_conformance := $(CURDIR)/integration/conformance/storage/$(DRIVER)
storage-conformance: build ## upstream's storage suites on a driver: make storage-conformance E2E_DIR=... [DRIVER=local|fuse] [MODE=mountpod] [NODES=1]
	@[ -f $(storage_conformance).yaml ] || { echo "storage-conformance: no $(storage_conformance).yaml: DRIVER is local or fuse" >&2; exit 1; }
	SETUP=$(wildcard $(storage_conformance).sh) E2E_ARGS='-storage.testdriver=$(storage_conformance).yaml $(E2E_ARGS)' \
		FOCUS='$(or $(FOCUS),External.Storage)' SKIP='$(or $(SKIP),\[Disruptive\])' scripts/conformance.sh

vm-test: build ## install, run, reboot, cut the power and uninstall in a VM: make vm-test VM=.../vm
	scripts/vm-test.sh $(VM)

vm-soak: build ## run soak in a VM, with a jumping clock: make vm-soak VM=.../vm [SOAK=10m] [SEED=N]
	SOAK=$(SOAK) SEED=$(SEED) scripts/vm-soak.sh $(VM)

vm-policy-test: build ## the tests of network policies in a VM: make vm-policy-test VM=.../vm [RUN=TestDead]
	RUN='$(RUN)' scripts/vm-policy-test.sh $(VM)

vm-nodes-test: build ## a server and an agent in two VMs, with a cut cable and a power cut: make vm-nodes-test VM=.../vm
	scripts/vm-nodes-test.sh $(VM)

vm-servers-test: build ## three servers in three VMs: faults, clocks off, plugs pulled, an upgrade, under load: make vm-servers-test VM=.../vm [PULLS=20]
	$(GO) build -ldflags '$(subst .Version=$(KUBELITH),.Version=$(KUBELITH)-next,$(LDFLAGS))' -o .cache/vm-servers-test/kubelith-next .
	NEXT=.cache/vm-servers-test/kubelith-next PULLS=$(PULLS) scripts/vm-servers-test.sh $(VM)

vagrant-validate: ## validate scripts/Vagrantfile (needs vagrant and bin/kubelith, no provider)
	cd scripts && VAGRANT_HOME=$(CURDIR)/.cache/vagrant vagrant validate --ignore-provider

vagrant-test: build ## `vagrant up`, upgrade and `vagrant destroy` with libvirt, without KVM (root)
	$(GO) build -ldflags '$(subst .Version=$(KUBELITH),.Version=$(KUBELITH)-next,$(LDFLAGS))' -o .cache/vagrant-test/kubelith-next .
	scripts/vagrant-test.sh

openrc-test: build ## install, kill, upgrade, shut down and uninstall on a Debian with OpenRC, in namespaces (root)
	scripts/openrc-test.sh

ARCHITECTURES ?= amd64 arm64
dist: deps-dist ## build executables for amd64 and arm64 in dist/
	mkdir -p dist
	for arch in $(ARCHITECTURES); do \
		$(MAKE) --no-print-directory payload images ARCH=$$arch && \
		GOARCH=$$arch $(GO) build -ldflags '$(LDFLAGS)' -o dist/kubelith-$$arch . && \
		GOARCH=$$arch $(GO) build -ldflags '-s -w' -o dist/kubelith-plugin-check-$$arch ./cmd/kubelith-plugin-check || exit 1; \
	done

# What is made from the executables is tools/release; docs/releases.md says how to publish one.
.PHONY: release release-check release-sign
release: ## everything of a release in dist/, of a commit: executables, SBOMs, image, checksums; with RELEASE_KEY=FILE signatures
	@[ -z "$$(git status --porcelain)" ] || { echo "release: commit or remove what git status shows: a release is of a commit"; exit 1; }
	rm -rf dist
	$(MAKE) --no-print-directory dist
	GOFLAGS=-trimpath $(GO) -C tools run ./release make -dist $(CURDIR)/dist -payload $(CURDIR)/.cache/payload -version $(KUBELITH) -created $(DATE) -architectures "$(ARCHITECTURES)"
	$(if $(RELEASE_KEY),$(MAKE) --no-print-directory release-sign,@echo "release: not signed: make release-sign RELEASE_KEY=FILE, here or where the key is")

release-sign: ## sign what make release has made, with a secret key of minisign: RELEASE_KEY=FILE, password in MINISIGN_PASSWORD
	@GOFLAGS=-trimpath $(GO) -C tools run ./release sign -dist $(CURDIR)/dist -key $(abspath $(RELEASE_KEY))

release-check: ## build dist/ again in a fresh clone with an empty build cache, and compare (20 minutes an architecture)
	ARCHITECTURES="$(ARCHITECTURES)" scripts/release-check.sh

.PHONY: size
size: ## count our own lines of Go by folder
	@scripts/size.sh

clean: payload-clean ## remove everything that make built
	rm -rf bin dist .cache
