# mesh: what can be made here. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := all
export PATH := $(PATH):/usr/local/go/bin

PROGRAMS := mesh-agent mesh-coordinator mesh-installer
BIN      ?= bin

# The agent travels to every machine. What runs when something happened there, and not all the time, is compiled
# without inlining and laid out closer: that is a twentieth of its file.
SLIM := -gcflags=mesh/agent/...=-l -gcflags=mesh/firewall/...=-l -gcflags=mesh/cmd/...=-l \
	-gcflags=github.com/spf13/...=-l -gcflags=github.com/vishvananda/...=-l

# Read only where they are used: git is asked when something is built.
RELEASE = $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null)
COMMIT  = $(shell git describe --always --exclude '*' --abbrev=12 --dirty 2>/dev/null)
STAMP   = -X mesh/shared/version.release=$(RELEASE) -X mesh/shared/version.commit=$(COMMIT)

# Packages that boot hosts, or whose programs do. They run one at a time: a host has the machine's cores.
HOST_PACKAGES = $(shell go list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}} ' ./... \
	| awk '/ mesh\/testbus\/hosts / || /^mesh\/testbus\/hosts / {print $$1}')
QUICK_PACKAGES = $(filter-out mesh $(HOST_PACKAGES),$(shell go list ./...))

QUICK_TIMEOUT := 10m
HOST_TIMEOUT  := 30m
# A child for each instant: the race detector makes each of them ten times as long, and sees nothing of them.
CHILDREN      := ^(TestCrashes|TestKilledAtEachInstantItConverges|TestADiskThatRefusesFromEachWriteOn|TestKilledWhileTakingItGoesOn)$$
FUZZTIME      ?= 10s
ROWS          ?=
SOAK          ?= 3000
HOST          ?= host1

.PHONY: all
all: ## build the three static programs into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 go build -trimpath $(SLIM) -ldflags '-s -w -funcalign=16 $(STAMP)' -o $(BIN)/ $(PROGRAMS:%=./cmd/%)

.PHONY: check
check: lint ## all that a change has to pass, booted hosts and race detector included; needs root
	go test -count=1 .
	go test -race -timeout $(QUICK_TIMEOUT) $(QUICK_PACKAGES)
	go test -race -count=1 -p 1 -timeout $(HOST_TIMEOUT) -skip '$(CHILDREN)' $(HOST_PACKAGES)
	CGO_ENABLED=0 go test -count=1 -run '$(CHILDREN)' ./agent/apply

.PHONY: test
test: ## the tests that boot no hosts, without the race detector: for while you work
	CGO_ENABLED=0 go test -timeout $(QUICK_TIMEOUT) . $(QUICK_PACKAGES)

.PHONY: e2e
e2e: ## only the tests on booted hosts; RUN= picks by name; needs root
	CGO_ENABLED=0 go test -count=1 -p 1 -timeout $(HOST_TIMEOUT) $(if $(RUN),-run '$(RUN)') $(HOST_PACKAGES)

.PHONY: bench
bench: ## the scoreboard: what mesh takes beside what the work itself takes; ROWS=1,3 picks rows
	go run ./cmd/e2e/bench $(if $(ROWS),--rows '$(ROWS)')

.PHONY: soak
soak: ## the crash harness: at least SOAK (3000) kills and power cuts of an agent, some five minutes; SEED= repeats a run; needs root
	cd agent/apply && CGO_ENABLED=0 go test -count=1 -timeout 60m -parallel 2 -run '^TestCrashes$$' -soak=$(SOAK)

.PHONY: lint
lint: ## format, vet, staticcheck
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted, run gofmt -w on:" $$unformatted >&2; exit 1; }
	go vet ./...
	go tool staticcheck ./...

.PHONY: generate
generate: ## write the documents that are made from the types again (check fails when they are old)
	CGO_ENABLED=0 go test ./shared/manifest/internal/reference -update
	MESH_GENERATE=1 CGO_ENABLED=0 go test -count=1 -run TestTheTableOfRightsIsFresh ./shared/grant

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (10s), one after the other
	@grep -rEo --include='*_test.go' '^func Fuzz\w+' . | sort | while IFS=: read -r file name; do \
		echo "$$(dirname "$$file") $${name#func }"; \
		CGO_ENABLED=0 go test -run '^$$' -fuzz "^$${name#func }$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null; \
	done

.PHONY: demo
demo: deps all ## a mesh of three real Debian hosts on this machine; needs root
	@go run ./cmd/e2e/demo up

.PHONY: demo-shell
demo-shell: ## a shell on a host of the demo: make demo-shell HOST=host2
	@go run ./cmd/e2e/demo shell $(HOST)

.PHONY: demo-down
demo-down: ## take the demo away; nothing is left behind
	@go run ./cmd/e2e/demo down

.PHONY: deps
deps: ## install what this machine lacks for all of the above (Debian, as root); quick when nothing is missing
	@.ci/deps

.PHONY: clean
clean: ## remove bin/ and what the tests left in Go's cache of test results
	rm -rf bin
	go clean -testcache

.PHONY: help
help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'
