# Static checks. The first run takes some three minutes on two cores, mostly for staticcheck to read Kubernetes; its cache
# is ~/.cache/staticcheck.
STATICCHECK := .cache/staticcheck
shell_files = $(shell git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

.PHONY: lint lint-quick lint-compiled lint-format lint-proto lint-vet lint-staticcheck lint-shell proto
lint: lint-quick lint-compiled ## gofmt, width of comments, generated code, go vet, staticcheck, shellcheck
lint-quick: lint-format lint-shell lint-proto
lint-compiled: lint-vet lint-staticcheck

lint-format:
	@out=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs ls 2>/dev/null | xargs gofmt -l); \
	[ -z "$$out" ] || { echo "gofmt: run gofmt -w on:"; echo "$$out"; exit 1; }
	@git ls-files --cached --others --exclude-standard '*.go' | grep -v '\.pb\.go$$' | xargs ls 2>/dev/null | xargs awk '{ line = $$0; gsub(/\t/, "    ", line) } \
		length(line) > 120 && line ~ /^ *\/\/ [^ ]/ && line !~ /https?:/ { print "lint: " FILENAME ":" FNR ": wrap comments at 120 columns"; bad = 1 } END { exit bad }'

lint-vet:
	$(GO) vet ./... $(library)

lint-staticcheck: $(STATICCHECK)
	@# It lists the standard library without modules, where -modfile is refused.
	GOFLAGS='$(filter-out -modfile=%,$(GOFLAGS))' $(STATICCHECK) ./... $(library)

$(STATICCHECK): tools/go.mod tools/go.sum
	GOARCH= GOFLAGS=-trimpath $(GO) -C tools build -o $(CURDIR)/$@ honnef.co/go/tools/cmd/staticcheck

# shellcheck does not know which variables OpenRC reads (SC2034), and that the shells it runs on have ulimit's options (SC3045).
lint-shell:
	@for f in scripts/*.openrc; do sh -n $$f || exit 1; done
	@scripts/embed-services.sh --check
	@if command -v shellcheck >/dev/null; then shellcheck --severity=warning $(shell_files) && \
		shellcheck --severity=warning --shell=sh --exclude=SC2034,SC3045 scripts/*.openrc; \
	else echo "lint: shellcheck is not installed (apt-get install shellcheck): scripts are not checked"; fi

# The Go code of the plugin protocols is in git: a build needs no generator, and a change shows in its diff.
PROTO_TOOLS := $(addprefix $(CURDIR)/.cache/tools/,genproto protoc-gen-go protoc-gen-go-grpc)

proto: $(PROTO_TOOLS) ## generate the Go code of plugins/proto after changing a .proto file
	$(word 1,$(PROTO_TOOLS)) plugins/proto $(wordlist 2,3,$(PROTO_TOOLS))

lint-proto: $(PROTO_TOOLS)
	@rm -rf .cache/proto && cp -r plugins/proto .cache/proto && $(word 1,$(PROTO_TOOLS)) .cache/proto $(wordlist 2,3,$(PROTO_TOOLS))
	@diff -rq plugins/proto .cache/proto || { echo "lint: run make proto and commit what it writes"; exit 1; }

$(PROTO_TOOLS) &: tools/go.mod tools/go.sum $(wildcard tools/genproto/*.go)
	GOARCH= GOFLAGS=-trimpath $(GO) -C tools build -o $(CURDIR)/.cache/tools/ ./genproto google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	@touch $(PROTO_TOOLS)
