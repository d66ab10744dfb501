# longcall: every command that the project needs. `make` or `make help` lists them.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

# Tools are built once, at these versions, into the user's cache.
GOLANGCI := v2.15.0
export LONGCALL_PEERS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/longcall-peers-v1
LINT := $(LONGCALL_PEERS)/tools/golangci-lint-$(GOLANGCI)
FUZZTIME ?= 30s
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

.PHONY: build
build: ## build bin/longcall
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X github.com/longcall/longcall/internal/cli.version=$(VERSION)' -o bin/longcall ./cmd/longcall

.PHONY: run
run: build ## build and serve on 127.0.0.1:8722 (ARGS='--config FILE')
	bin/longcall serve $(ARGS)

.PHONY: check
check: $(LINT) ## go vet for Linux, macOS and Windows, and golangci-lint with gofumpt
	go vet ./...
	GOOS=windows go vet ./cmd/... ./internal/...
	GOOS=darwin go vet ./cmd/... ./internal/...
	$(LINT) run ./...
	$(LINT) fmt --diff

# Cases measure time, and peers are whole processes: each has the machine for itself.
.PHONY: test
test: check ## everything that must hold: lint, and all tests with -race against real peers; installs what they need
	@skips=$$(mktemp); trap 'rm -f $$skips' EXIT; rc=0; \
	export LONGCALL_SKIPS=$$skips; \
	go test -race -timeout 10m $$(go list ./... | grep -vE '/test/(cases|peers|conformance|chaos)$$') || rc=$$?; \
	go test -race -timeout 10m ./test/cases || rc=$$?; \
	go test -v -count=1 -timeout 10m ./test/chaos || rc=$$?; \
	go test -parallel 6 -timeout 20m ./test/peers || rc=$$?; \
	go test -parallel 4 -timeout 10m ./test/conformance || rc=$$?; \
	if [ -s $$skips ]; then echo; echo '!!! NOT TESTED:'; sort -u $$skips; fi; exit $$rc

.PHONY: race
race: ## the product's own tests with -race, without peers (PKG=./internal/...)
	go test -race $(or $(PKG),./internal/... ./test/wire/... ./test/arch/...)

.PHONY: chaos
chaos: ## break everything around the real binary, and kill it (ROUNDS=2000; CHAOS_SEED=n plays one round again)
	CHAOS_ROUNDS=$(or $(ROUNDS),$(if $(CHAOS_SEED),,2000)) go test -v -count=1 -timeout 4h ./test/chaos

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rlE '^func Fuzz' --include=*_test.go internal test | xargs -n1 dirname | sort -u | while read -r dir; do \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | sed 's/^func //'); do \
	    echo "$$dir $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) ./$$dir; done; done

.PHONY: bench
bench: build ## the benchmark beside the floor, both eras (QUICK=1 for a short one); journal on
	go run ./test/bench -longcall bin/longcall $(if $(QUICK),-quick) $(ARGS)

.PHONY: hosts
hosts: build ## Claude Code, Codex, Gemini CLI and opencode through longcall, with a scripted model (DIRECT=1 without longcall)
	LONGCALL_HOSTS=$(if $(DIRECT),direct,gateway) LONGCALL_BIN=$(CURDIR)/bin/longcall go test -v -count=1 -parallel 4 -timeout 30m ./test/hosts

$(LINT):
	@mkdir -p $(LINT).tmp && GOBIN=$(abspath $(LINT).tmp) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)
	@mv $(LINT).tmp/golangci-lint $@ && rmdir $(LINT).tmp
