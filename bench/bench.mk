# Benchmarks: Kubelith against the same upstream programs as separate processes (bench/compare), the cost of a
# request in the process and over TLS (bench/requests), the packed size, the network between nodes. Needs root and a quiet machine.
#
#   make bench                              7 rounds of starts and pods, 2 of five minutes idle: about 75 minutes
#   make bench ROUNDS=3 IDLE_SECONDS=60     fewer and shorter
#   make bench-quick                        one short round of each, as a test
#   make bench-pods                         where the time of a pod goes, by stage: about 3 minutes
#   make bench-small                        the default configuration on one core and 1 GiB: about 6 minutes
#   make bench-table                        print the table of the results so far
#   make bench-plugins                      plugins against what they replace (bench/plugins): about 15 minutes
#   make bench-scale                        1,000 hollow nodes and 10,000 pods: about 20 minutes
#   make bench-network                      routes between pods, network policies, and the cost of an agent (bench/network): about 40 minutes
#   make bench-network BENCH_NETWORK=TestPolicies     only what network policies cost: about 8 minutes
#   make bench-network BENCH_NETWORK=TestEnforcers ROUNDS=1 BENCH_ENFORCERS='NAME=COMMAND'     beside other programs that enforce them
#   make bench-ha                           faults of three servers, and what three cost beside one: about 50 minutes
#
# An interrupted run continues where it stopped. Results belong to one executable and one set of settings:
# after a change remove $(BENCH_RESULTS) or name another file.
ROUNDS ?= 7
IDLE_ROUNDS ?= 2
IDLE_SECONDS ?= 300
BENCH_RESULTS ?= .cache/bench/results.jsonl
# PEER_GOGC: Kubelith's own setting (components/node/memory), for the processes of the composition.
PEER_GOGC ?= 50
# PEER_START: "ordered" starts the peers' clients only when the apiserver is ready, instead of all at once.
PEER_START ?=

BENCH := .cache/bench
bench_programs := etcd containerd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns containerd-shim-runc-v2 runc bridge host-local
bench_package_etcd := go.etcd.io/etcd/server/v3
bench_package_containerd := github.com/containerd/containerd/v2/cmd/containerd
bench_package_containerd-shim-runc-v2 := github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
bench_package_coredns := github.com/coredns/coredns
bench_tags_containerd-shim-runc-v2 := -tags no_grpc # as containerd builds it
comma := ,
bench_goflags = $(subst $(comma)fieldsv1string,,$(GOFLAGS)) # upstream builds without it
bench_package = $(or $(bench_package_$(1)),k8s.io/kubernetes/cmd/$(1))

.PHONY: bench bench-quick bench-pods bench-small bench-table bench-peers bench-ha bench-network bench-scale bench-plugins bench-clean
bench: bin/kubelith bench-peers $(BENCH)/kubelith.zst ## measure against separate upstream processes (root, about 75 minutes)
	$(bench_run)
	@$(MAKE) --no-print-directory bench-table

bench-quick: ## run one short round of the benchmarks
	@rm -f $(BENCH)/quick.jsonl
	@$(MAKE) --no-print-directory bench ROUNDS=1 IDLE_ROUNDS=1 IDLE_SECONDS=20 BENCH_RESULTS=$(BENCH)/quick.jsonl

# One pod after the other, in each cluster.
BENCH_PODS ?= 10
bench-pods: bin/kubelith bench-peers ## measure where the time of a pod goes, by stage (root, about 3 minutes)
	$(GO) test -c -ldflags='-s -w' -o $(BENCH)/compare.test ./bench/compare
	cd bench/compare && $(bench_env) BENCH_PODS=$(BENCH_PODS) $(CURDIR)/$(BENCH)/compare.test -test.run TestStages -test.timeout 1h

# In a cgroup of that size, which no other benchmark has.
SMALL_ROUNDS ?= 3
SMALL_IDLE ?= 30
bench-small: IDLE_SECONDS = $(SMALL_IDLE)
bench-small: bin/kubelith bench-peers ## measure the default configuration on one core and 1 GiB (root, about 6 minutes)
	$(GO) test -c -ldflags='-s -w' -o $(BENCH)/compare.test ./bench/compare
	cd bench/compare && $(bench_env) SMALL_ROUNDS=$(SMALL_ROUNDS) $(CURDIR)/$(BENCH)/compare.test -test.run TestSmall -test.timeout 1h

bench-table:
	@$(GO) run ./bench/report -results $(BENCH_RESULTS) $(if $(wildcard $(BENCH)/kubelith.zst),-packed $(BENCH)/kubelith.zst)

# The test binary is built first, so that nothing is compiled during a measurement. `cd`: a test
# runs in the directory of its package.
define bench_run
$(GO) test -c -ldflags='-s -w' -o $(BENCH)/compare.test ./bench/compare
$(GO) test -c -ldflags='-s -w' -o $(BENCH)/requests.test ./bench/requests
cd bench/compare && $(bench_env) $(CURDIR)/$(BENCH)/compare.test -test.run TestCompare -test.v -test.timeout 5h
cd bench/requests && $(bench_env) $(CURDIR)/$(BENCH)/requests.test -test.run TestRequests -test.v -test.timeout 30m
endef
bench_env = BENCH_BUILD="$$(sha256sum $(CURDIR)/bin/kubelith | cut -c 1-12) idle=$(IDLE_SECONDS) gogc=$(PEER_GOGC) start=$(PEER_START)$(bench_build)" \
	BENCH_RESULTS=$(abspath $(BENCH_RESULTS)) BENCH_PEERS=$(CURDIR)/$(BENCH)/bin ROUNDS=$(ROUNDS) IDLE_ROUNDS=$(IDLE_ROUNDS) \
	IDLE_SECONDS=$(IDLE_SECONDS) PEER_GOGC=$(PEER_GOGC) PEER_START=$(PEER_START)

bench-network: bin/kubelith ## measure routes between pods, network policies, and an agent (root, about 40 minutes)
	$(GO) test -c -ldflags='-s -w' -o $(BENCH)/network.test ./bench/network
	cd bench/network && KUBELITH_BIN=$(CURDIR)/bin/kubelith $(bench_network_env) $(CURDIR)/$(BENCH)/network.test -test.run '$(BENCH_NETWORK)' -test.v -test.timeout 3h
	@$(GO) run ./bench/report -table network -results $(BENCH_NETWORK_RESULTS)
BENCH_NETWORK_RESULTS ?= $(BENCH)/network.jsonl
BENCH_NETWORK_IDLE ?= 120
BENCH_NETWORK ?= .
bench_network_env = BENCH_BUILD="$$(sha256sum $(CURDIR)/bin/kubelith | cut -c 1-12) idle=$(BENCH_NETWORK_IDLE)" \
	BENCH_RESULTS=$(abspath $(BENCH_NETWORK_RESULTS)) ROUNDS=$(ROUNDS) IDLE_SECONDS=$(BENCH_NETWORK_IDLE)

# So many leaders are killed one after the other, and servers at random. A random kill takes 5 s.
KILLS ?= 50
RANDOM_KILLS ?= $(KILLS)
bench-ha: bin/kubelith robustness ## three servers: faults under load, checked for lost and reordered writes; what they cost beside one (root, about 50 minutes)
	KUBELITH_REQUIRE_INTEGRATION=1 KUBELITH_BIN=$(CURDIR)/bin/kubelith KUBELITH_LEADER_KILLS=$(KILLS) KUBELITH_RANDOM_KILLS=$(RANDOM_KILLS) \
		$(GO) test -count=1 -v -timeout 0 ./integration/servers -run 'TestFaults$$|TestReadyAfterCut$$|TestFullOfThree$$|TestCost$$'

bench-plugins: bin/kubelith ## measure plugins against what they replace (root, about 15 minutes)
	$(GO) test -c -ldflags='-s -w' -o $(BENCH)/plugins.test ./bench/plugins
	cd bench/plugins && KUBELITH_BIN=$(CURDIR)/bin/kubelith BENCH_BUILD="$$(sha256sum $(CURDIR)/bin/kubelith | cut -c 1-12)" \
		BENCH_RESULTS=$(abspath $(BENCH_PLUGINS_RESULTS)) ROUNDS=$(ROUNDS) $(CURDIR)/$(BENCH)/plugins.test -test.v -test.timeout 3h
	@for table in admission scheduling storage; do $(GO) run ./bench/report -table $$table -results $(BENCH_PLUGINS_RESULTS); done
BENCH_PLUGINS_RESULTS ?= $(BENCH)/plugins.jsonl

bench-scale: IDLE_SECONDS = $(SCALE_IDLE)
bench-scale: BENCH_RESULTS = $(BENCH_SCALE_RESULTS)
bench-scale: bench_build = $(empty) nodes=$(SCALE_NODES) pods=$(SCALE_PODS)
bench-scale: bin/kubelith bench-peers $(BENCH)/kwok/kwok ## measure 1,000 hollow nodes and 10,000 pods, beside separate processes (root, about 20 minutes)
	$(GO) test -c -ldflags='-s -w' -o $(BENCH)/compare.test ./bench/compare
	cd bench/compare && $(bench_env) KWOK=$(CURDIR)/$(BENCH)/kwok SCALE_NODES=$(SCALE_NODES) SCALE_PODS=$(SCALE_PODS) $(CURDIR)/$(BENCH)/compare.test -test.run TestScale -test.v -test.timeout 2h
	@$(GO) run ./bench/report -table scale -results $(BENCH_SCALE_RESULTS)
BENCH_SCALE_RESULTS ?= $(BENCH)/scale.jsonl
SCALE_NODES ?= 1000
SCALE_PODS ?= 10000
SCALE_IDLE ?= 30
# The stages define what kwok does with nodes and pods; they are part of its source.
$(BENCH)/kwok/kwok: bench/compare/kwok/go.mod bench/compare/kwok/go.sum
	@mkdir -p $(@D)
	GOFLAGS= $(GO) -C bench/compare/kwok mod download sigs.k8s.io/kwok
	stages=$$(GOFLAGS= $(GO) -C bench/compare/kwok list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage && \
		install -m 644 $$stages/node/fast/node-initialize.yaml $$stages/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml $$stages/pod/fast/pod-*.yaml $(@D)
	GOFLAGS= $(GO) -C bench/compare/kwok build -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$@ sigs.k8s.io/kwok/cmd/kwok

# The peers come from this module's go.mod and go.sum. Their main packages import a few modules that Kubelith does
# not (CoreDNS's cloud plugins, containerd's tracing): the copies take their checksums, at the versions that go.mod selects.
bench-peers: $(addprefix $(BENCH)/bin/,$(bench_programs))
$(BENCH)/bin/bridge $(BENCH)/bin/host-local: $(BENCH)/bin/%: $(PAYLOAD_CACHE)/%
	@mkdir -p $(@D)
	cp $< $@
$(BENCH)/bin/runc: $(PAYLOAD_CACHE)/runc-upstream
	@mkdir -p $(@D)
	cp $< $@
$(BENCH)/bin/%: $(BENCH)/go.mod
	@mkdir -p $(@D)
	GOFLAGS='$(bench_goflags)' $(GO) build -modfile=$(BENCH)/go.mod -mod=mod $(bench_tags_$*) -ldflags '$(LDFLAGS)' -o $@ $(call bench_package,$*)
$(BENCH)/go.mod: go.mod go.sum
	@mkdir -p $(@D)
	cp go.sum $(BENCH)/go.sum
	cp go.mod $@

# Every make builds bin/kubelith again, so compare its content.
$(BENCH)/kubelith.zst: bin/kubelith
	@mkdir -p $(@D)
	@sum=$$(sha256sum bin/kubelith) && if [ "$$sum" != "$$(cat $@.sum 2>/dev/null)" ]; then \
		zstd -19 -f -q -o $@ bin/kubelith && echo "$$sum" > $@.sum; fi

bench-clean:
	rm -rf $(BENCH)
