# Every command of the project. Each sets up what it needs; `make help` is the index.
.DEFAULT_GOAL := help
SHELL := /bin/sh
# Version stamps come from releases; without them a clone owned by someone else builds too.
export GOFLAGS ?= -buildvcs=false

.PHONY: help
help: ## List these commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-20s %s\n", $$1, $$2 }' Makefile

.PHONY: quickstart
quickstart: ## See orders move from a database through a broker into another: a minute, several the first time, while it builds.
	@hack/preflight.sh
	@go build -o bin/quickstart ./hack/quickstart && bin/quickstart

.PHONY: quickstart-cluster
quickstart-cluster: ## See the same in a cluster: one of its own (root, Linux), or with KUBECONFIG=… and IMAGE=… yours.
	@hack/preflight.sh
	@CGO_ENABLED=0 go build -trimpath -o bin/quickstart-cluster ./hack/quickstart-cluster && bin/quickstart-cluster

.PHONY: test
test: ## Run everything CI runs: verify, every test on real servers and clusters, both quick starts.
	@hack/preflight.sh test
	@go build -o bin/ci ./hack/ci && bin/ci test

.PHONY: test-kubernetes
test-kubernetes: ## Try the operator on a real control plane; builds Kubernetes once, which takes a quarter of an hour.
	@hack/preflight.sh
	@go run ./hack/cluster
	@CGO_ENABLED=0 go test -trimpath -tags kubernetes -count=1 -parallel 8 ./test/envtest

.PHONY: test-postgres
test-postgres: ## Run what depends on PostgreSQL on versions 15, 16 and 18 too.
	@hack/preflight.sh cc
	@go build -o bin/servers ./hack/servers
	@for version in 15 16 18; do echo "=== PostgreSQL $$version" && CGO_ENABLED=1 bin/servers run --postgres=$$version -- \
	  go test -race -count=1 -timeout=15m ./internal/postgres/... ./internal/relay/... ./internal/consumer/... \
	  ./internal/verify/... ./outbox/... ./test/integration/... || exit 1; done; echo "OK: PostgreSQL 15, 16 and 18"

.PHONY: test-leases
test-leases: ## Run what is about leases, and who holds them, a hundred times with the race detector.
	@hack/preflight.sh cc
	@go build -o bin/servers ./hack/servers
	@CGO_ENABLED=1 bin/servers run -- go test -race -count=100 -timeout=60m -run 'Lease|Zombie|Takeover|GateWrites' \
	  ./internal/postgres/outboxdb ./internal/relay

.PHONY: soak
soak: ## Trade over all three brokers for SOAK (30m) while one thing after another breaks; then postrider verify.
	@hack/preflight.sh cc
	@go build -o bin/servers ./hack/servers
	@CGO_ENABLED=1 POSTRIDER_SOAK=$(or $(SOAK),30m) POSTRIDER_SOAK_SEED=$(or $(SEED),$(shell date +%s)) bin/servers run -- \
	  go test -race -count=1 -timeout=3h -run '^TestSoak$$' -v ./test/integration && echo "OK: the books balance"

.PHONY: test-pods
test-pods: ## Try Postrider as installed, on a whole cluster with Pods in namespaces of its own: root, Linux.
	@hack/preflight.sh
	@CGO_ENABLED=0 go test -trimpath -tags kubernetes -count=1 -timeout=20m -v ./test/e2e

.PHONY: measure-manager
measure-manager: ## Measure the operator with a hundred resources: memory, processor time at rest and under load.
	@hack/preflight.sh
	@go run ./hack/cluster
	@CGO_ENABLED=0 go test -trimpath -tags kubernetes -run '^$$' -bench BenchmarkManager -timeout 30m ./test/envtest

.PHONY: bench
bench: ## Measure the relay to each broker against the bare SQL and the brokers' own clients (half an hour; needs quiet).
	@hack/preflight.sh
	@go run ./hack/bench

.PHONY: bench-peers
bench-peers: ## Measure the relay beside Watermill's forwarder and Debezium, on one Kafka (half an hour; needs quiet).
	@hack/preflight.sh
	@go build -o bin/bench ./hack/bench && bin/bench peers

.PHONY: lint
lint: ## Check style, sizes, import rules and API conventions.
	@hack/preflight.sh
	@go build -o bin/ci ./hack/ci && bin/ci lint

.PHONY: verify
verify: ## Check that generated files are current, then lint and look for known vulnerabilities.
	@hack/preflight.sh
	@go build -o bin/ci ./hack/ci && bin/ci verify

.PHONY: generate
generate: ## Write generated code, resource definitions and docs.
	@hack/preflight.sh
	@go build -o bin/ci ./hack/ci && bin/ci generate

.PHONY: build
build: ## Build all commands into bin/.
	@hack/preflight.sh
	@CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...
