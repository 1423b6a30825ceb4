# Kubelith. `make help` lists the targets; README.md explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

ARCH ?= $(shell go env GOARCH)
GO ?= go
include payload.mk

# The build's settings are the environment of every go command here, so that
# build, vet, lint and test share one cache.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false -tags=no_btrfs,no_devmapper,no_zfs

KUBERNETES := $(shell sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod)
KUBELITH := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
STAMP := k8s.io/component-base/version
CLIENT_STAMP := k8s.io/client-go/pkg/version
minor = $(word 2,$(subst ., ,$(KUBERNETES)))
LDFLAGS := -s -w -X main.kubelithVersion=$(KUBELITH) \
	-X $(STAMP).gitVersion=$(KUBERNETES)+kubelith -X $(STAMP).gitMajor=1 -X $(STAMP).gitMinor=$(minor) -X $(STAMP).gitTreeState=clean \
	-X $(STAMP).gitCommit=$(shell git rev-parse -q --verify HEAD 2>/dev/null || echo unknown) \
	-X $(STAMP).buildDate=$(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo 1970-01-01T00:00:00Z)

.PHONY: help build
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

build: bin/kubelith ## the one executable, at bin/kubelith

.PHONY: bin/kubelith
bin/kubelith: payload images
	@echo "build: compiling Kubernetes $(KUBERNETES) into bin/kubelith (6 minutes the first time, seconds after)"
	GOARCH=$(ARCH) $(GO) build -ldflags '$(LDFLAGS)' -o $@ .
	@ln -sf kubelith bin/kubectl
