# Every target with a line of explanation after "##" appears in "make help".

SHELL       := /bin/bash
GO          ?= go
BIN         := $(CURDIR)/.bin
STATICCHECK := $(BIN)/staticcheck
STATICCHECK_VERSION := v0.8.2

# How long each fuzz target runs in "make test"; "make fuzz" takes longer.
FUZZTIME    ?= 500ms
TESTTIMEOUT ?= 15m

# The packages that are another program without the race detector: all their tests
# are run without it too, as are those of a package which has such a one below its internal/.
# Of others, .ci/longer finds the tests that run without it
# only, or are longer then. The other tests are run once, with the race detector.
PLAIN = $(shell grep -rlE --include='*.go' --exclude='*_test.go' '^//go:build .*\brace\b' [a-z]*/ | xargs -n1 dirname | sed 's|/internal/.*||' | sort -u | sed 's|^|./|')

# Programs and their commands, rules of the tree, tests of daemons from outside, and the
# managers that only measurements use: what they are made of is tested with the race
# detector where it is. "make soak" runs them with it. Robustness comes first, since it
# takes longest and waits a lot.
PROGRAMS = ./robustness . ./cmd/polder $(COMMANDS:%=./cmd/polder/internal/%) ./examples/... ./measure/... ./pool/baseline/... ./share/robustness
COMMANDS = advise demo doctor swap top

# Everything but the race detector builds without cgo, as what ships, so that
# nothing is compiled twice.
export CGO_ENABLED = 0
race soak: export CGO_ENABLED = 1

# A third of the processor time of compiling went into its garbage collection. Tests do not see this.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) '-toolexec=env GOGC=off GOMEMLIMIT=1GiB')

# Nobody debugs the programs of "make test", and a fifth of the time of compiling and half
# of the time of linking went into what only debuggers read. Stack traces do without.
test: export GOFLAGS := $(GOFLAGS) -gcflags=all=-dwarf=false -ldflags=-w

# How long "make soak" runs each soak test.
SOAK ?= 10m

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The packages whose tests run the program would each build one.
test: export TEST_BINARY = $(BIN)/polder

.PHONY: test
test: deps lint build race plain smoke-fuzz ## everything a change must pass: vet, format, lint, build, tests with and without -race, short fuzzing

.PHONY: deps
deps: ## install what the tests need (Redis, etcd, python3 with packages) if it is missing
	@.ci/deps

.PHONY: build
build: ## build everything without cgo; the binary is .bin/polder
	$(GO) build ./...
	$(GO) build -o $(BIN)/polder ./cmd/polder

# Lint has vetted everything, and binaries without debug information are linked
# in half the time. One package more than there are processors is tested at a time,
# since many tests wait for connections, timers and processes.
TESTFLAGS = -vet=off -ldflags=-w -timeout $(TESTTIMEOUT) -p $(shell expr $$(nproc) + 1)

# Programs under the race detector sleep for a second when they exit, for goroutines
# that are not waited for: goleak has seen that there are none. The longest packages come first.
.PHONY: race
race: ## run the tests of every package with the race detector, but for programs
	GORACE=atexit_sleep_ms=0 .ci/race $(GO) test -race $(TESTFLAGS) ./resp ./far $$(comm -23 <($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | sort) <($(GO) list $(PROGRAMS) | sort))

.PHONY: plain
plain: ## run without the race detector the tests of programs, and of what is built differently then: plain stores, all interleavings
	$(GO) test $(TESTFLAGS) $(PROGRAMS) $(PLAIN)
	PLAIN="$(PLAIN)" PROGRAMS="$(PROGRAMS)" .ci/longer $(GO) test $(TESTFLAGS)

.PHONY: smoke-fuzz
smoke-fuzz: ## run every fuzz target for FUZZTIME (500ms), not guided by coverage
	@GO="$(GO)" .ci/fuzz $(FUZZTIME) blind

.PHONY: fuzz
fuzz: ## run every fuzz target for 10 minutes
	@GO="$(GO)" .ci/fuzz 10m

.PHONY: soak
soak: ## run the long forms of tests, SOAK (10m) each, and robustness five times
	$(GO) test -race -count=1 -timeout 4h $(PROGRAMS)
	$(GO) test -count=1 -timeout 4h ./...
	TEST_SOAK=1 $(GO) test -race -count=1 -timeout 4h ./share/robustness
	TEST_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h -run Soak ./...
	TEST_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h -run 'Torture|EveryStructureIs' ./far
	$(GO) test -race -count=1 -timeout 4h -tags settle ./far ./far/bytemap ./resp
	TEST_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h ./measure/simcrash
	TEST_SOAK=$(SOAK) $(GO) test -count=1 -timeout 4h -tags settle ./measure/simcrash
	TEST_SOAK=$(SOAK) $(GO) test -count=1 -timeout 4h -run SimulatedRegisters ./holder/witness
	TEST_SOAK=$(SOAK) $(GO) test -count=1 -timeout 4h -run SoakLongestByteString ./far
	TEST_SOAK=$(SOAK) $(GO) test -race -count=1 -timeout 4h -run ClientsThatAreKilled ./pool/finemem
	TEST_SOAK=$(SOAK) $(GO) test -count=1 -timeout 4h -run SoakInterleavings ./pool/finemem
	$(GO) test -count=1 -timeout 4h ./soft -run NoWrongByte -torture $(SOAK) -torture.pace 0
	$(GO) test -count=1 -timeout 4h ./robustness -run ClientsSurvive -torture $(SOAK)
	$(GO) test -count=1 -timeout 4h -tags soak ./measure/softbench
	$(GO) test -race -count=1 -timeout 4h -run TestRandomCommandsGetRedissReplies ./resp -resp.commands 200000
	TEST_SOAK=1 $(GO) test -count=1 -timeout 4h ./robustness -run 'MoreKeys|ResidentMemoryStays'
	TEST_SOAK=1 $(GO) test -race -count=1 -timeout 4h ./far/named
	TEST_SOAK=1 $(GO) test -count=1 -timeout 4h ./measure/simfaults
	TEST_SOAK=1 $(GO) test -count=1 -timeout 4h ./measure/logmodel
	TEST_SOAK=1 $(GO) test -count=1 -timeout 4h ./robustness -run 'DurableServerAtNodes|InTheMemoryOfNodesOutlives|NothingIsLostWithANode|OfASharedHeapLoseNothing|ASharedHeapIsLinearizable'
	$(GO) test -count=5 -timeout 4h ./robustness

.PHONY: mutate
mutate: ## break the code in every way of docs/mutations.md and see tests fail; FILES=far/ breaks those only
	TEST_MUTATE='$(or $(FILES),.)' $(GO) test -count=1 -timeout 4h -v -run MutationsTurn .

# The tests of what depends on the processor: plain stores, fences, stripes, words and
# rings that others write to. Emulated, they take 10 to 50 times longer, so the rest
# is left out: of chain the model of all interleavings and of softnic what it computes,
# neither of which uses more than one goroutine, and of far, soft and resp what is not
# about memory that several goroutines use at a time. This cannot be emulated: the test
# of resp/proto asks which pages are mapped, and is told the emulator's; the system runs
# no program for arm64 that an emulated one starts, as memnode/component, pool/broker and
# share have their tests do; verbs/ibv needs a NIC.
ARM64 = GOARCH=arm64 $(GO) test -vet=off -count=1 -short -exec qemu-aarch64

.PHONY: soak-arm64
soak-arm64: ## run the tests of what depends on the processor as arm64 programs, with qemu-user: some ten minutes
	@command -v qemu-aarch64 >/dev/null || { echo "make soak-arm64 needs qemu-aarch64 (Debian: apt-get install qemu-user)"; exit 1; }
	$(ARM64) -timeout 5m ./internal/arena ./internal/futex ./far/heap ./soft/wire ./share/internal/shm
	$(ARM64) -timeout 5m -skip ArgumentsThatHaveComeCostNothing ./resp/proto
	$(ARM64) -timeout 5m -skip EveryInterleaving ./memnode/chain
	$(ARM64) -timeout 5m -run 'Masked|Gather|Indirect|Fence|Wait|Wrap|Sequence|Bind|Packets|States|Flush|LinkDown|Forged|Post' ./verbs/softnic
	$(ARM64) -timeout 10m -run 'Conformance$$|Hello|Passed' ./verbs/shm
	$(ARM64) -timeout 15m -run 'InPlace|Half|QueueGives|LooksForIt|LongCopy|NoWriteIsLost|UnderAWriter|HisTurn|Walk|PtrLoads|CompareAndSwap|NamedIsNotLost' -skip Interleavings ./soft
	$(ARM64) -timeout 20m -run 'Scope|TortureOfObjects|Linearizable|ManyGoroutines|ComeAndGo|WhileItIsEvacuated|Transactions' ./far ./far/bytemap

.PHONY: test-console
test-console: ## run the tests of the web console in a real browser, Debian's chromium; POLDER_SHOTS=$PWD/docs/images makes the documents' pictures anew
	@command -v chromium >/dev/null || { echo "installing chromium"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; }
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -tags browser ./robustness/browser

.PHONY: test-prometheus
test-prometheus: ## have Debian's promtool check the metrics of every daemon, docs/alerts.yml and docs/grafana.json
	@command -v promtool >/dev/null || { echo "installing prometheus"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends prometheus; }
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -tags promtool -run Promtool ./robustness

.PHONY: test-block
test-block: ## run libnbd's tools, qemu-io and fio on polder block
	@for need in nbdcopy:libnbd-bin qemu-io:qemu-utils fio:fio; do command -v $${need%:*} >/dev/null || missing="$$missing $${need#*:}"; done; \
		[ -z "$$missing" ] || { echo "installing$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; }
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -tags nbd -run BlockDevice ./robustness

# How often the guest swaps under pressure, and how long after the first time it may begin again.
RUNS ?= 5
WITHIN ?= 12h

.PHONY: deps-swap
deps-swap:
	@for need in qemu-system-x86_64:qemu-system-x86 dpkg-deb:dpkg xz:xz-utils zstd:zstd nbd-client:nbd-client mkswap:util-linux swapon:mount mkfs.ext4:e2fsprogs; do command -v $${need%:*} >/dev/null || missing="$$missing $${need#*:}"; done; \
		[ -z "$$missing" ] || { echo "installing$$missing"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; }

# The file of the package of the guests' kernel; the distribution's if it is empty.
KERNEL ?=

.PHONY: test-swap
test-swap: deps-swap ## have a kernel use polder block as a disk and as swap, in virtual machines (docs/how-to/swap.md); RUNS=100 swaps so often under pressure, or as often as WITHIN=1h allows
	$(GO) test -count=1 -v -timeout 12h -tags guests ./robustness/swap -swap.kernel '$(abspath $(KERNEL))' -swap.runs $(RUNS) -swap.within $(WITHIN)

.PHONY: bench-swap
bench-swap: deps-swap ## compare objects and pages with the kernel's swapping to zram and over NBD, in a virtual machine; pages take Linux 6.6: KERNEL=linux-image-VERSION.deb; LONG=1 for all of it
	$(GO) test -count=1 -timeout 12h -tags guests -run '^$$' -bench KernelSwap -benchtime 1x ./robustness/swap -swap.kernel '$(abspath $(KERNEL))' $(if $(LONG),-swap.long)

.PHONY: docs
docs: ## write those pages of docs/ anew that are made of the program
	POLDER_WRITE_DOCS=1 $(GO) test -count=1 -run 'PageIsTrue|DashboardIsMade|KeepTheConventions' ./cmd/polder ./resp ./internal/console ./robustness

.PHONY: test-rdma
test-rdma: ## run the programs over real RDMA: Soft-RoCE in virtual machines (docs/rdma.md); LONG=1 for all of it
	@.ci/deps-rdma
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -tags guests -parallel 3 $(if $(LONG),,-short -run 'Fails|HungGuest|Containers') ./robustness/rdma/vm
	$(GO) run ./robustness/rdma $(if $(LONG),-long)

# Where "make install" puts things, below DESTDIR.
PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR    ?= $(SYSCONFDIR)/systemd/system

.PHONY: install
install: build ## install the binary, manual pages, completions, systemd units and commented configuration (PREFIX, DESTDIR, SYSCONFDIR, UNITDIR)
	install -D -m 0755 $(BIN)/polder $(DESTDIR)$(PREFIX)/bin/polder
	$(BIN)/polder man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BIN)/polder completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/polder
	$(BIN)/polder completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_polder
	$(BIN)/polder completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/polder.fish
	install -D -m 0644 deploy/systemd/polder.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/polder.conf
	install -d $(DESTDIR)$(UNITDIR)
	for unit in deploy/systemd/*.service deploy/systemd/*.socket; do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' $$unit >$(DESTDIR)$(UNITDIR)/$${unit##*/} && chmod 0644 $(DESTDIR)$(UNITDIR)/$${unit##*/} || exit; done
	for file in deploy/config/*.yaml; do \
		test -e $(DESTDIR)$(SYSCONFDIR)/polder/$${file##*/} || install -D -m 0644 $$file $(DESTDIR)$(SYSCONFDIR)/polder/$${file##*/} || exit; done

.PHONY: test-deploy
test-deploy: ## decode deploy/kubernetes strictly, with Kubernetes' own types; as root, run the units by a real systemd in namespaces, and what is in the image
	cd bench/manifests && $(GO) test -count=1 ./...
	@command -v systemd-sysusers >/dev/null || { echo "installing systemd"; apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends systemd; }
	$(GO) test -count=1 -timeout $(TESTTIMEOUT) -tags systemd -run 'SystemdRuns|ImageRuns' ./robustness

.PHONY: bench
bench: build ## measure this tree against redis-server, raw TCP and memcpy
	$(BIN)/polder bench resp
	$(BIN)/polder bench verbs
	$(BIN)/polder bench alloc
	$(BIN)/polder bench malloc
	$(BIN)/polder bench kv
	$(BIN)/polder bench finemem
	$(BIN)/polder bench broker
	for b in deref pause map set words scan threads web component; do $(BIN)/polder bench far $$b || exit; done
	$(BIN)/polder bench share
	$(BIN)/polder bench soft ptr
	$(BIN)/polder bench soft reclaim
	cd bench && $(GO) run . -short

.PHONY: lint
lint: $(STATICCHECK) ## vet, check formatting, staticcheck
	$(GO) vet -tags guests,browser,promtool,systemd,nbd ./...
	cd bench && $(GO) vet ./...
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then \
		echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	GOGC=400 $(STATICCHECK) ./... # half of its time went into garbage collection

$(STATICCHECK):
	GOBIN=$(BIN) $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

.PHONY: fmt
fmt: ## format the code
	gofmt -w .
