# Every target with a line of explanation after "##" appears in "make help".

SHELL       := /bin/bash
GO          ?= go
BIN         := $(CURDIR)/.bin
STATICCHECK := $(BIN)/staticcheck
STATICCHECK_VERSION := v0.8.2

# How long each fuzz target runs in "make test"; "make fuzz" takes longer.
FUZZTIME    ?= 20s
TESTTIMEOUT ?= 10m

# How long "make soak" runs each soak test.
SOAK ?= 10m

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: deps lint build race checkers smoke-fuzz ## everything a change must pass: vet, format, lint, build, tests with -race, model checkers, short fuzzing

.PHONY: deps
deps: ## install what the tests need (Redis, python3, numpy) if it is missing
	@.ci/deps

.PHONY: build
build: ## build everything without cgo; the binary is .bin/polder
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) build -o $(BIN)/polder ./cmd/polder

.PHONY: race
race: ## run every test with the race detector
	$(GO) test -race -timeout $(TESTTIMEOUT) ./...

.PHONY: checkers
checkers: ## explore interleavings and crash points without the race detector, which makes them few
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -v -run 'Interleaving|ClientsThatAreKilled' ./pool/finemem

.PHONY: smoke-fuzz
smoke-fuzz: ## run every fuzz target for FUZZTIME (20s)
	@GO="$(GO)" .ci/fuzz $(FUZZTIME)

.PHONY: fuzz
fuzz: ## run every fuzz target for 10 minutes
	@GO="$(GO)" .ci/fuzz 10m

.PHONY: soak
soak: ## run the long forms of tests, SOAK (10m) each, and robustness five times
	POLDER_SOAK=1 $(GO) test -race -count=1 -timeout 4h ./share/robustness
	POLDER_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h -run Soak ./...
	POLDER_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h -run 'Torture|EveryStructureIs' ./far
	POLDER_SOAK=$(SOAK) $(GO) test -count=1 -timeout 4h -run SoakLongestByteString ./far
	POLDER_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h -run ClientsThatAreKilled ./pool/finemem
	POLDER_SOAK=$(SOAK) $(GO) test -count=1 -timeout 4h -run SoakInterleavings ./pool/finemem
	$(GO) test -count=1 -timeout 4h ./soft -run NoWrongByte -torture $(SOAK) -torture.pace 0
	$(GO) test -count=1 -timeout 4h ./internal/softcmd -run Survive -torture $(SOAK)
	$(GO) test -count=1 -timeout 4h -tags soak ./measure/softbench
	$(GO) test -race -count=1 -timeout 4h -run TestRandomCommandsGetRedissReplies ./resp -resp.commands 200000
	$(GO) test -count=5 -timeout 4h ./robustness

.PHONY: test-rdma
test-rdma: ## run the programs over real RDMA: Soft-RoCE in virtual machines (docs/rdma.md); LONG=1 for all of it
	@.ci/deps-rdma
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -tags guests -parallel 3 $(if $(LONG),,-short -run 'Fails|HungGuest') ./robustness/rdma/vm
	$(GO) run ./robustness/rdma $(if $(LONG),-long)

.PHONY: bench
bench: build ## measure this tree against redis-server, raw TCP and memcpy
	$(BIN)/polder bench resp
	$(BIN)/polder bench verbs
	$(BIN)/polder bench alloc
	$(BIN)/polder bench finemem
	$(BIN)/polder bench broker
	for b in deref pause map scan threads web component; do $(BIN)/polder bench far $$b || exit; done
	$(BIN)/polder bench share
	$(BIN)/polder bench soft ptr
	$(BIN)/polder bench soft reclaim
	cd bench && $(GO) run . -short

.PHONY: lint
lint: $(STATICCHECK) ## vet, check formatting, staticcheck
	$(GO) vet ./...
	cd bench && $(GO) vet ./...
	$(GO) vet -tags guests ./robustness/rdma/vm
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then \
		echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	$(STATICCHECK) ./...

$(STATICCHECK):
	GOBIN=$(BIN) $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

.PHONY: fmt
fmt: ## format the code
	gofmt -w .
