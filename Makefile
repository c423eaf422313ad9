# hangar: see README.md. `make help` lists the targets.

SHELL       := /bin/sh
GO          ?= go
VERSION     ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.1.0-dev)
COMMIT      ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
ENGINE       = $(shell $(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor)
LINT_VERSION = v2.15.0
S3_VERSION   = v1.7.0
ACME_VERSION = v2.10.1
H2_VERSION   = v2.2.1
KIT_VERSION  = v0.34.2
SBOM_VERSION = v1.10.0

TOOLS      := $(CURDIR)/.tools
LINT       := $(TOOLS)/golangci-lint-$(LINT_VERSION)
S3SERVER   := $(TOOLS)/versitygw-$(S3_VERSION)
ACMESERVER := $(TOOLS)/pebble-$(ACME_VERSION)
H2SPEC     := $(TOOLS)/h2spec-$(H2_VERSION)
BUILDKIT   := $(TOOLS)/buildkit-$(KIT_VERSION)
SBOM       := $(TOOLS)/cyclonedx-gomod-$(SBOM_VERSION)
EMBEDDED   := host/driver/gvisor/engine/embedded/hangar-sandbox.zst
STORE      := metrics/program/embedded/hangar-metrics.zst
DBPROGRAM  := replica/program/embedded/hangar-db.zst
GUEST      := host/guest/program/embedded/hangar-guest.zst

# The version and commit are passed with -ldflags instead.
export GOFLAGS ?= -buildvcs=false
# By default a program with the race detector waits a second before it exits, and tests start hundreds.
export GORACE ?= atexit_sleep_ms=0
RELEASE = CGO_ENABLED=0 $(GO) build -trimpath

PKG      ?= ./...
RUN      ?= .
FUZZTIME ?= 20s

.DEFAULT_GOAL := build
.PHONY: help build dist engine store db guest deps s3-server acme-server h2spec buildkit demo up test extended shuffle race stress lint fmt e2e vm sim cluster attack fuzz bench bench-api bench-machine bench-net bench-traffic bench-volumes bench-edge bench-metrics bench-events bench-db bench-deploy bench-cluster sqlite-suite clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# go build updates the time of an unchanged binary, which would invalidate cached test results.
build: deps engine store db guest ## build bin/hangar, with the embedded sandbox engine, metrics store, database node and SSH server
	$(RELEASE) -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.engineVersion=$(ENGINE)' -o bin/.hangar ./cmd/hangar
	@cmp -s bin/.hangar bin/hangar || cp --remove-destination bin/.hangar bin/hangar

# The embedded programs are compressed only when they have changed, because that takes longer than
# building them.
engine: deps
	@GO='$(GO)' .ci/engine bin/hangar-sandbox $(TOOLS)
	@.ci/pack bin/hangar-sandbox $(EMBEDDED)

store: deps
	@$(RELEASE) -ldflags '-s -w' -o bin/.hangar-metrics ./cmd/hangar-metrics
	@cmp -s bin/.hangar-metrics bin/hangar-metrics || cp --remove-destination bin/.hangar-metrics bin/hangar-metrics
	@.ci/pack bin/hangar-metrics $(STORE)

db: deps ## build bin/hangar-db, the node of replicated databases
	@$(RELEASE) -ldflags '-s -w -X main.version=$(VERSION)' -o bin/.hangar-db ./cmd/hangar-db
	@cmp -s bin/.hangar-db bin/hangar-db || cp --remove-destination bin/.hangar-db bin/hangar-db
	@.ci/pack bin/hangar-db $(DBPROGRAM)

guest: deps
	@$(RELEASE) -ldflags '-s -w' -o bin/.hangar-guest ./cmd/hangar-guest
	@cmp -s bin/.hangar-guest bin/hangar-guest || cp --remove-destination bin/.hangar-guest bin/hangar-guest
	@.ci/pack bin/hangar-guest $(GUEST)

deps: ## install missing Debian packages (needs root if any is missing)
	@.ci/deps

s3-server: $(S3SERVER) ## build the S3 server that tests use

# A separate program, because linking it into the tests would add a hundred modules.
$(S3SERVER):
	@mkdir -p $(TOOLS)
	@echo 'building versitygw $(S3_VERSION)'
	@GOBIN=$(TOOLS) CGO_ENABLED=0 $(GO) install github.com/versity/versitygw/cmd/versitygw@$(S3_VERSION) && mv $(TOOLS)/versitygw $@

acme-server: $(ACMESERVER) ## build the ACME server that tests use

$(ACMESERVER):
	@mkdir -p $(TOOLS)
	@echo 'building pebble $(ACME_VERSION)'
	@GOBIN=$(TOOLS) CGO_ENABLED=0 $(GO) install github.com/letsencrypt/pebble/v2/cmd/pebble@$(ACME_VERSION) && mv $(TOOLS)/pebble $@

h2spec: $(H2SPEC) ## build the HTTP/2 conformance suite that tests run

$(H2SPEC):
	@mkdir -p $(TOOLS)
	@echo 'building h2spec $(H2_VERSION)'
	@GOBIN=$(TOOLS) CGO_ENABLED=0 $(GO) install github.com/summerwind/h2spec/cmd/h2spec@$(H2_VERSION)+incompatible && mv $(TOOLS)/h2spec $@

buildkit: $(BUILDKIT) ## build BuildKit, with which tests build images in Machines

$(BUILDKIT):
	@echo 'building buildkit $(KIT_VERSION)'
	@GOBIN=$@.new CGO_ENABLED=0 $(GO) install -ldflags '-s -w' github.com/moby/buildkit/cmd/buildctl@$(KIT_VERSION) github.com/moby/buildkit/cmd/buildkitd@$(KIT_VERSION) && mv $@.new $@

$(SBOM):
	@mkdir -p $(TOOLS)
	@echo 'building cyclonedx-gomod $(SBOM_VERSION)'
	@GOBIN=$(TOOLS) CGO_ENABLED=0 $(GO) install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(SBOM_VERSION) && mv $(TOOLS)/cyclonedx-gomod $@

dist: build $(SBOM) ## make release archives and a Debian package, in build/dist
	GO='$(GO)' VERSION='$(VERSION)' SBOM='$(SBOM)' .ci/dist build/dist

demo: build ## demonstrate the platform on this server in a minute (root); KEEP=1 leaves it running
	@examples/demo.sh

up: build ## run the platform in the foreground (root); ARGS= adds flags
	bin/hangar up $(ARGS)

# These have code or tests that the race detector excludes.
NORACE = ./host/archive ./edge/proxy ./edge/proxy/http1 ./host/journal
# These kill processes of their own test program, which starts slowly under the race detector.
KILLED = ./control ./host/image ./host/logs ./host/rootfs
# These run bin/hangar or hundreds of CLI commands. The race detector would see
# only the clients of the tests, and slow down every start. test/wire starts forty
# platforms in its process; test/contract and test/platform run these with the race detector. Each run of LONG
# takes as long as its flags set.
BINARY = ./test/binary ./cmd/hangar ./test/spec ./test/attack ./test/wire ./test/full ./test/vm
LONG = ./test/compat ./test/power ./test/sim
# These take longest, and begin first so that no processor idles at the end.
SLOW = ./replica ./test/contract ./test/platform ./host/volume ./control ./edge/proxy ./host/machines ./metrics/store
# These link gVisor, whose 280 packages take minutes to compile with the race detector. Without it, the build cache
# has them from building the patched engine. In DRIVER, only TestWireTypes needs it.
SANDBOX = ./cmd/hangar-sandbox
DRIVER = ./host/driver/gvisor

# Lint vets, and tests need no debug information. PLAIN uses the flags of releases, so that
# nothing is compiled twice. Tests spend half of their time waiting, so two packages per processor
# run at a time.
TEST  = $(GO) test -vet=off -ldflags=-w -p $(shell expr 2 '*' $$(nproc)) $(if $(SHUFFLE),-shuffle=$(SHUFFLE))
# With the tag "testing", deriving a key from a password takes a tenth of a millisecond instead of two seconds:
# see host/archive.
RACE  = CGO_ENABLED=1 $(TEST) -race -tags testing
PLAIN = CGO_ENABLED=0 $(TEST) -trimpath

# For go list: packages with tests, and packages without. go test would compile the latter, too, with their
# imports, which need no race detector.
TESTED   = {{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}
UNTESTED = {{if not (or .TestGoFiles .XTestGoFiles)}}{{.ImportPath}}{{end}}

# With -short, random tests and tests that kill processes are shorter. They run in full each night.
SHORT = $(if $(SHUFFLE),,-short)

# Runs everything except the end-to-end tests and LONG, which take longer. Tests use bin/hangar. A result is
# cached until the package or a file that its tests read changes; SHUFFLE=on and
# ARGS=-count=1 run all tests again.
test: build s3-server acme-server h2spec ## run every test without a cached result, with the race detector (root: real Machines)
	$(RACE) -timeout 18m $(SHORT) $(ARGS) $$($(GO) list -f '$(TESTED)' $(SLOW) ./... | grep -v -x -F "$$($(GO) list $(BINARY) $(LONG) $(SANDBOX) ./test/cluster ./test/e2e)")
	$(PLAIN) -tags testing -timeout 10m $(SHORT) $(ARGS) $(NORACE)
	$(PLAIN) -timeout 10m $(SHORT) $(ARGS) $(BINARY) $$($(GO) list -f '$(UNTESTED)' ./...)
	$(PLAIN) -timeout 10m $(SHORT) $(ARGS) -modfile=$(CURDIR)/bin/hangar-sandbox.mod $(SANDBOX)
	$(PLAIN) -timeout 10m $(SHORT) $(ARGS) -modfile=$(CURDIR)/bin/hangar-sandbox.mod -run TestWireTypes $(DRIVER)
	$(PLAIN) -timeout 10m $(SHORT) $(ARGS) -run Kill $(KILLED)

extended: build ## run short tests with real clients, power cuts, random users and kill -9 (root)
	$(PLAIN) -timeout 20m $(ARGS) $(LONG)

shuffle: ## run every test again in random order, as each night; SHUFFLE=SEED repeats an order (root)
	$(MAKE) test extended SHUFFLE=$(or $(SHUFFLE),on)

race: build ## run RUN of the tests in PKG three times with the race detector (root)
	$(RACE) -shuffle=on -count=3 -timeout 30m -run '$(RUN)' $(PKG)

stress: build ## run RUN of PKG, or each test known to be sensitive, N times under load (root)
	@GO='$(GO)' .ci/stress $(or $(N),200) $(if $(filter-out .,$(RUN)),$(PKG) '$(RUN)')

lint: $(LINT) ## run the linters
	$(LINT) run

fmt: $(LINT) ## format every file
	$(LINT) fmt

$(LINT):
	@mkdir -p $(TOOLS)
	@if [ "$$(golangci-lint version --short 2>/dev/null)" = '$(LINT_VERSION:v%=%)' ]; then \
		ln -sf "$$(command -v golangci-lint)" $@; \
	else \
		echo 'building golangci-lint $(LINT_VERSION)'; \
		GOBIN=$(TOOLS) CGO_ENABLED=0 $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) && mv $(TOOLS)/golangci-lint $@; \
	fi

e2e: build $(if $(E2E_SHORT),,buildkit $(SBOM)) ## test real programs in real Machines (root); E2E_SHORT=1 bounds a run, E2E_CYCLES=1000 sets the number of cycles
	@.ci/deps e2e
	E2E_SHORT=$(E2E_SHORT) E2E_CYCLES=$(E2E_CYCLES) $(PLAIN) -count=1 -timeout $(if $(E2E_SHORT),60m,6h) -v -run '$(RUN)' ./test/e2e/

vm: ## test volumes on a kernel with device mapper in an emulated machine, in a few minutes
	@.ci/deps vm
	VM=1 VM_RUN='$(RUN)' $(PLAIN) -count=1 -timeout 130m -v ./test/vm/

sim: build ## test random users and kill -9 on a real daemon (root); SIM_SEED= repeats a run, SIM_TIME= bounds the run with volumes
	SIM_ROUNDS=$(or $(SIM_ROUNDS),40) SIM_DRIVER=fake $(PLAIN) -count=1 -timeout 60m -v ./test/sim/
	SIM_ROUNDS=$(or $(SIM_ROUNDS),6) SIM_TIME=$(or $(SIM_TIME),20m) SIM_DRIVER=gvisor $(PLAIN) -count=1 -timeout 90m -v ./test/sim/

# The tests of ./test/cluster that every change must pass.
CLUSTER_SHARE = ^(TestAnyHostAnswers|TestClients|TestMetrics|TestFaults)$$

cluster: build ## test several real servers, which are killed and disconnected, with real clients (root); CLUSTER_SHORT=1 bounds a run, CLUSTER_SEED= repeats one, CLUSTER_SERVERS=5 uses more servers
	@.ci/deps cluster
	CLUSTER_SHORT=$(CLUSTER_SHORT) CLUSTER_ROUNDS=$(or $(CLUSTER_ROUNDS),$(if $(CLUSTER_SHORT),2,40)) $(PLAIN) -count=1 -timeout $(if $(CLUSTER_SHORT),20m,120m) -v -run '$(if $(CLUSTER_SHORT),$(CLUSTER_SHARE),$(RUN))' ./test/cluster/

attack: build ## test hostile tenants, clients and images against a real daemon, with floods (root)
	ATTACK=1 $(PLAIN) -count=1 -timeout 30m -v -run '$(RUN)' ./test/attack/

fuzz: ## run every fuzz target for FUZZTIME
	@for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n1 dirname | sort -u); do \
		for target in $$(grep -h '^func Fuzz' $$pkg/*_test.go | sed 's/func \(Fuzz[A-Za-z0-9_]*\).*/\1/'); do \
			echo "$$pkg $$target"; \
			CGO_ENABLED=0 $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg" || exit 1; \
		done; \
	done

bench: bench-machine bench-api bench-net bench-traffic bench-volumes bench-edge bench-metrics bench-events bench-db bench-deploy bench-cluster ## measure every published number (root)
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchmem $(PKG)

sqlite-suite: ## run SQLite's own tests on a hangar-db mount and on a plain directory (root), in build/sqlite; see the script for PATIENCE= and FILES=
	test/sqlite/suite $(ARGS)

bench-machine: build ## measure start, suspend, resume, exec and memory of Machines (root)
	CGO_ENABLED=0 $(GO) run ./bench/machine $(ARGS)

bench-traffic: build ## compare the private network with directly joined sandboxes (root)
	CGO_ENABLED=0 $(GO) run ./bench/traffic $(ARGS)

bench-volumes: build ## measure volumes, and compare snapshots with kopia, restic and qemu-img (root)
	CGO_ENABLED=0 $(GO) run ./bench/volumes $(ARGS)

bench-edge: build ## compare the public edge with nginx, HAProxy and Caddy, in about ten minutes (root)
	@.ci/deps bench
	CGO_ENABLED=0 $(GO) run ./bench/edge $(ARGS)

bench-api: build ## measure the API with 100 to 10,000 Machines, in about five minutes (root)
	CGO_ENABLED=0 $(GO) run ./bench/api $(ARGS)

bench-net: ## compare the private network's rules with nft's, and its DNS with dnsmasq and unbound (root)
	CGO_ENABLED=0 $(GO) run ./bench/net $(ARGS)

bench-events: ## compare webhooks with plain POST requests
	CGO_ENABLED=0 $(GO) run ./bench/events $(ARGS)

bench-db: ## compare replicated databases with plain SQLite (root, a C compiler)
	CGO_ENABLED=1 $(GO) run ./bench/db $(ARGS)

bench-deploy: build ## compare deploys with the engine's own start, and GraphQL with REST (root)
	CGO_ENABLED=0 $(GO) run ./bench/deploy $(ARGS)

bench-cluster: build ## compare calls that another server of the cluster handles with local ones (root)
	CGO_ENABLED=0 $(GO) run ./bench/cluster $(ARGS)

bench-metrics: ## compare the metrics plane with the bare store, in about fifteen minutes (root)
	CGO_ENABLED=0 $(GO) run ./bench/metrics $(ARGS)

clean: ## remove everything that the build created
	rm -rf bin .tools $(EMBEDDED) $(STORE) $(DBPROGRAM) $(GUEST)
