# What is embedded into the executable for containers: the programs (runtime/payload) and the images
# (runtime/images). Both are built from source, only when their sources changed, for one architecture:
#   make payload images ARCH=amd64|arm64
ARCH ?= $(shell go env GOARCH)
GO ?= go
PAYLOAD_CACHE := .cache/payload/$(ARCH)

# Debian packages that building for this machine's architecture needs, and those that building for another one adds.
PAYLOAD_PACKAGES := gcc libc6-dev libseccomp-dev pkg-config make
payload_cross_amd64 := gcc-x86-64-linux-gnu libc6-dev-amd64-cross libseccomp-dev:amd64 qemu-user-static
payload_cross_arm64 := gcc-aarch64-linux-gnu libc6-dev-arm64-cross libseccomp-dev:arm64 qemu-user-static
PAYLOAD_PACKAGES_DIST = $(foreach arch,$(filter-out $(shell $(GO) env GOHOSTARCH),amd64 arm64),$(payload_cross_$(arch)))

# runc is the one program that needs C: for seccomp and for its first steps inside the namespaces.
payload_cc_amd64 := x86_64-linux-gnu-gcc
payload_cc_arm64 := aarch64-linux-gnu-gcc
payload_libs_amd64 := /usr/lib/x86_64-linux-gnu
payload_libs_arm64 := /usr/lib/aarch64-linux-gnu
# runc is built with the programs of common seccomp filters, which only the architecture itself can compile.
payload_emulator_amd64 := qemu-x86_64-static
payload_emulator_arm64 := qemu-aarch64-static
payload_run := $(if $(filter-out $(shell $(GO) env GOHOSTARCH),$(ARCH)),$(payload_emulator_$(ARCH)))

pause_header := runtime/images/programs/pause/pause.h
payload_programs := runc containerd-shim-runc-v2 kubelith-keeper kubelith-pause kubelith-cni loopback portmap local
payload_plugins := github.com/containernetworking/plugins/plugins
payload_sources := payload.mk runtime/payload/programs/go.mod runtime/payload/programs/go.sum
payload_build = CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) GOFLAGS= $(GO) -C runtime/payload/programs build -trimpath -buildvcs=false

.PHONY: payload images payload-clean
payload: runtime/payload/embed/$(ARCH)/payload.tar.zst
images: runtime/images/embed/$(ARCH)/images.tar.zst

runtime/payload/embed/$(ARCH)/payload.tar.zst: $(addprefix $(PAYLOAD_CACHE)/,$(payload_programs)) $(wildcard runtime/payload/pack/*.go)
	CGO_ENABLED=0 GOARCH= $(GO) run ./runtime/payload/pack -out $(@D) \
		runc=$(PAYLOAD_CACHE)/runc containerd-shim-runc-v2=$(PAYLOAD_CACHE)/containerd-shim-runc-v2 \
		kubelith-keeper=$(PAYLOAD_CACHE)/kubelith-keeper kubelith-pause=$(PAYLOAD_CACHE)/kubelith-pause \
		kubelith-cni=$(PAYLOAD_CACHE)/kubelith-cni kubelith-loopback=$(PAYLOAD_CACHE)/loopback \
		kubelith-portmap=$(PAYLOAD_CACHE)/portmap kubelith-local=$(PAYLOAD_CACHE)/local

payload_cgo_build = CGO_ENABLED=1 CC=$(payload_cc_$(ARCH)) PKG_CONFIG_LIBDIR=$(payload_libs_$(ARCH))/pkgconfig \
	GOOS=linux GOARCH=$(ARCH) GOFLAGS= $(GO) -C runtime/payload/programs build -trimpath -buildvcs=false \
	-tags "seccomp netgo osusergo" -ldflags '-s -w -extldflags -static'
# Upstream's source as it is, and patched: docs/adr/060-seccomp-filters-in-runc.md.
payload_patched := $(CURDIR)/$(PAYLOAD_CACHE)/patched
$(PAYLOAD_CACHE)/runc-upstream: $(payload_sources)
	$(payload_cgo_build) -o $(CURDIR)/$@ github.com/opencontainers/runc
$(PAYLOAD_CACHE)/runc-patched: $(payload_sources) go.mod scripts/patch.sh $(wildcard patches/runc/* runtime/payload/profiles/*.go runtime/payload/programs/seccomp/*.go)
	scripts/patch.sh runc $(ARCH)
	$(payload_cgo_build) -modfile=$(payload_patched)/go.mod -o $(payload_patched)/seccomp ./seccomp
	CGO_ENABLED=0 GOARCH=$(ARCH) GOFLAGS= $(GO) build -trimpath -buildvcs=false -o $(payload_patched)/profiles ./runtime/payload/profiles
	$(payload_run) $(payload_patched)/profiles >$(payload_patched)/profiles.json
	$(payload_run) $(payload_patched)/seccomp $(payload_patched)/runc/libcontainer/seccomp/compiled <$(payload_patched)/profiles.json
	$(payload_cgo_build) -modfile=$(payload_patched)/go.mod -o $(CURDIR)/$@ github.com/opencontainers/runc
.PHONY: payload-test
payload-test: $(PAYLOAD_CACHE)/runc-patched # upstream's tests of what patches/runc changes; filters have the same bytes each time
	@for i in 1 2 3 4 5; do rm -rf $(payload_patched)/again && mkdir $(payload_patched)/again && \
		$(payload_run) $(payload_patched)/seccomp $(payload_patched)/again <$(payload_patched)/profiles.json && \
		diff -r -x README $(payload_patched)/runc/libcontainer/seccomp/compiled $(payload_patched)/again || exit 1; done
	$(subst build -trimpath,test -trimpath,$(payload_cgo_build)) -modfile=$(payload_patched)/go.mod github.com/opencontainers/runc/libcontainer/seccomp/...
# runc is one of the two. The file .chosen is new when the choice changes.
payload_runc := $(PAYLOAD_CACHE)/runc-$(if $(UNPATCHED),upstream,patched)
$(payload_runc).chosen:
	mkdir -p $(@D)
	rm -f $(PAYLOAD_CACHE)/runc-*.chosen
	touch $@
$(PAYLOAD_CACHE)/runc: $(payload_runc) $(payload_runc).chosen
	cp $< $@

# The shim is of this module: upstream's packages, and sandboxes of our own with their process in C.
$(PAYLOAD_CACHE)/containerd-shim-runc-v2: payload.mk go.mod $(wildcard base/names/*.go base/procstat/*.go runtime/sandbox/*.go runtime/shim/*.go runtime/shim/cmd/*.go)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) GOFLAGS= $(GO) build -trimpath -buildvcs=false -tags no_grpc -ldflags '-s -w' -o $@ ./runtime/shim/cmd
$(PAYLOAD_CACHE)/kubelith-keeper: runtime/tasks/keeper/keeper.c payload.mk
	mkdir -p $(@D)
	$(payload_cc_$(ARCH)) -Os -static -s -Wall -Wextra -Werror -o $@ $<
$(PAYLOAD_CACHE)/kubelith-pause: runtime/sandbox/pause/pause.c $(pause_header) payload.mk
	mkdir -p $(@D)
	$(payload_cc_$(ARCH)) -Os -static -s -Wall -Wextra -Werror -o $@ $<

$(PAYLOAD_CACHE)/loopback: $(payload_sources)
	$(payload_build) -ldflags '-s -w' -o $(CURDIR)/$@ $(payload_plugins)/main/loopback
$(PAYLOAD_CACHE)/portmap: $(payload_sources)
	$(payload_build) -ldflags '-s -w' -o $(CURDIR)/$@ $(payload_plugins)/meta/portmap
# What containerd executes for each pod: it asks components/worker/podlink.
$(PAYLOAD_CACHE)/kubelith-cni: components/worker/podlink/program/kubelith-cni.c payload.mk
	mkdir -p $(@D)
	$(payload_cc_$(ARCH)) -Os -static -s -Wall -Wextra -Werror -o $@ $<

# Not of the payload: what others use instead, in a test and in benchmarks.
.PHONY: cni-plugins
cni-plugins: $(PAYLOAD_CACHE)/bridge $(PAYLOAD_CACHE)/host-local
$(PAYLOAD_CACHE)/bridge: $(payload_sources)
	$(payload_build) -ldflags '-s -w' -o $(CURDIR)/$@ $(payload_plugins)/main/bridge
$(PAYLOAD_CACHE)/host-local: $(payload_sources)
	$(payload_build) -ldflags '-s -w' -o $(CURDIR)/$@ $(payload_plugins)/ipam/host-local

# The storage plugin is of this module: it is written with the SDK that other plugins are written with.
$(PAYLOAD_CACHE)/local: payload.mk go.mod $(wildcard base/atomicfile/*.go base/names/*.go plugins/builtin/local/*.go plugins/builtin/local/cmd/*.go plugins/sdk/*.go plugins/proto/*.go plugins/proto/*/v1/*.go)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) GOFLAGS= $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ ./plugins/builtin/local/cmd

$(PAYLOAD_CACHE)/pause: runtime/images/programs/pause/pause.c $(pause_header) payload.mk
	mkdir -p $(@D)
	$(payload_cc_$(ARCH)) -DVERSION='"1"' -Os -static -s -Wall -Wextra -Werror -o $@ $<
$(PAYLOAD_CACHE)/hello: $(wildcard runtime/images/programs/hello/*.go) payload.mk
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ ./runtime/images/programs/hello

runtime/images/embed/$(ARCH)/images.tar.zst: $(PAYLOAD_CACHE)/pause $(PAYLOAD_CACHE)/hello $(wildcard runtime/images/make/*.go) runtime/images/names.go
	CGO_ENABLED=0 GOARCH= $(GO) run ./runtime/images/make -arch $(ARCH) -out $@ -pause $(PAYLOAD_CACHE)/pause -hello $(PAYLOAD_CACHE)/hello

payload-clean:
	rm -rf .cache/payload runtime/payload/embed/*/payload.* runtime/images/embed/*/images.*
