# What reads the code without running it. The first run takes some three minutes on two cores, most of it
# staticcheck reading Kubernetes; it keeps what it learned in its own cache (~/.cache/staticcheck).
STATICCHECK := .cache/staticcheck
shell_files = $(shell git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

.PHONY: lint lint-format lint-vet lint-staticcheck lint-shell
lint: lint-format lint-vet lint-staticcheck lint-shell ## gofmt, go vet, staticcheck, shellcheck

lint-format:
	@out=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs ls 2>/dev/null | xargs gofmt -l); \
	[ -z "$$out" ] || { echo "gofmt: run gofmt -w on:"; echo "$$out"; exit 1; }

lint-vet:
	$(GO) vet ./...

lint-staticcheck: $(STATICCHECK)
	$(STATICCHECK) ./...

$(STATICCHECK): tools/go.mod tools/go.sum
	GOARCH= GOFLAGS=-trimpath $(GO) -C tools build -o $(CURDIR)/$@ honnef.co/go/tools/cmd/staticcheck

# shellcheck does not know which variables OpenRC reads (SC2034).
lint-shell:
	@for f in scripts/*.openrc; do sh -n $$f || exit 1; done
	@scripts/embed-services.sh --check
	@if command -v shellcheck >/dev/null; then shellcheck --severity=warning $(shell_files) && \
		shellcheck --severity=warning --shell=sh --exclude=SC2034 scripts/*.openrc; \
	else echo "lint: shellcheck is not installed (apt-get install shellcheck): scripts are not checked"; fi
