# The one list of commands. `make` or `make help` prints it.
# Works for a user, for root, and through sudo (the calling user's Rust toolchain is found).

# `su` without `-` keeps the user's PATH, which lacks these.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin
CARGO := scripts/cargo
TARGET := $(shell scripts/cargo target)

# Every test file that is no tier of its own.
PURE = $(filter-out bench component containerds monitoring node soak,$(basename $(notdir $(wildcard tests/*.rs))))

.PHONY: help build demo cluster-demo test test-node test-all test-on-host test-aarch64 test-attacks test-fast test-build test-release test-api-pods test-cluster test-containerds test-skew test-machine node-failure soak soak-machine bench bench-doc lint fmt
.DEFAULT_GOAL := help
# Each tier has a time limit, which it would miss beside another one.
.NOTPARALLEL:

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 26

build: ## build the release binary, target/release/nodelet
	scripts/prerequisites build
	$(CARGO) build --release --locked
	@echo "Built with the release profile, as it is shipped: $(TARGET)/release/nodelet"

demo: ## see it work, in two minutes, beside whatever runs here (needs root; KEEP=1 leaves it running)
	@scripts/demo

cluster-demo: ## see a cluster of two nodes with kube-proxy and CoreDNS, in a minute after the builds (needs root, Go)
	@scripts/cluster-demo

test-build:
	scripts/prerequisites build
	$(CARGO) test --locked --no-run

test-fast: test-build ## what needs neither root nor containerd
	scripts/tier pure 180 $(CARGO) test --locked --lib --bins $(addprefix --test ,$(PURE))
	scripts/tier component 300 $(CARGO) test --locked --test component -- --test-threads=6

test: test-fast test-node ## all of that and the same on private containerds; as root, a quarter of an hour

test-node:
	@[ "$$(id -u)" = 0 ] || { echo "make test needs root for its private containerd; without root: make test-fast" >&2; exit 1; }
	scripts/prerequisites test
	scripts/tier bench 60 $(CARGO) test --locked --test bench --test monitoring
	scripts/tier node 1020 $(CARGO) test --locked --test node -- --test-threads=5
	scripts/tier demo 120 env NODELET=$(TARGET)/debug/nodelet scripts/demo

# What the release build must pass on a real containerd, besides all component tests and the demo.
RELEASE_CORE = a_crashing_container_backs_off a_hog_dies_while_the_runtime_hangs a_memory_hog_goes_alone_and_comes_back_later \
	an_edit_replaces_the_pod_after_the_old_one_is_gone jobs_run_to_their_end killed_around_every_mutating_call \
	killed_around_every_state_file_write logs_are_printed many_pods_at_once security_context termination_messages volumes

# The tests in whole machines that `make test-all` runs. `make test-machine` runs all of them but the one of `make soak-machine`.
MACHINE_CORE = a_node_through_its_life a_reboot_waits_for_pods slices_hold_what_manifests_ask two_drivers_are_told_apart_and_changed \
	power_losses_in_a_churn memory_pressure_on_a_small_machine kubeadm_makes_a_machine_a_node

test-all: test-fast ## and attacks, the upstream kubelet, clusters, every containerd, whole machines; an hour
	scripts/prerequisites test
	@# The release build takes minutes of processor time, and most tests wait.
	scripts/beside "$(MAKE) --no-print-directory test-on-host" "$(CARGO) build --release --locked"
	$(MAKE) --no-print-directory test-release
	scripts/prerequisites machine
	@# Not on the tier's time. Elsewhere the tier says that it is skipped.
	[ "$$(uname -m)" != x86_64 ] || tests/machine/image "$(TARGET)/machine" >/dev/null
	@[ "$$($(CARGO) test --quiet --locked --test machine -- --list --exact $(MACHINE_CORE) | grep -c ': test$$')" = $(words $(MACHINE_CORE)) ] \
	  || { echo "MACHINE_CORE in the Makefile names a test that tests/machine/main.rs does not have" >&2; exit 1; }
	scripts/tier machine 1200 env NODELET=$(TARGET)/release/nodelet $(CARGO) test --locked --test machine -- --test-threads=2 --exact $(MACHINE_CORE)

test-on-host: test-node
	scripts/tier attacks 720 $(CARGO) test --locked --test attacks -- --test-threads=2
	@# Not on the tier's time: minutes the first time, nothing after. Without Go (3) the tier says that it is skipped.
	@tests/upstream/build kubelet "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	scripts/tier parity 120 $(CARGO) test --locked --test parity
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build metrics-server "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	scripts/tier cluster 600 $(CARGO) test --locked --test cluster -- --test-threads=3
	@tests/upstream/build kube-proxy "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build coredns "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@# Without them (3) the tests say what they skip.
	scripts/containerd-versions fetch || [ $$? = 3 ]
	scripts/tier api-pods 1140 $(CARGO) test --locked --test api_pods -- --test-threads=2
	scripts/tier containerds 540 $(CARGO) test --locked --test containerds -- --test-threads=5

test-release: test-build ## the component tests, the demo and the core of the node tests on the release build; as root
	scripts/prerequisites test
	$(CARGO) build --release --locked
	@[ "$$($(CARGO) test --quiet --locked --test node -- --list --exact $(RELEASE_CORE) | grep -c ': test$$')" = $(words $(RELEASE_CORE)) ] \
	  || { echo "RELEASE_CORE in the Makefile names a test that tests/node.rs does not have" >&2; exit 1; }
	scripts/tier release-component 300 env NODELET=$(TARGET)/release/nodelet $(CARGO) test --locked --test component -- --test-threads=6
	scripts/tier release-node 360 env NODELET=$(TARGET)/release/nodelet $(CARGO) test --locked --test node -- --test-threads=3 --exact $(RELEASE_CORE)
	scripts/tier release-demo 120 env NODELET=$(TARGET)/release/nodelet scripts/demo

test-cluster: test-build ## nodes in a real control plane: etcd, kube-apiserver and the rest; as root
	scripts/prerequisites test
	@# Not on the tier's time, as above.
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build kubelet "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build metrics-server "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	scripts/tier cluster 600 $(CARGO) test --locked --test cluster -- --test-threads=3

test-api-pods: test-build ## pods from an API server, on one node and on two with kube-proxy and CoreDNS; as root
	scripts/prerequisites test
	@# Not on the tier's time, as above.
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build kube-proxy "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build coredns "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build metrics-server "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	scripts/containerd-versions fetch || [ $$? = 3 ]
	scripts/tier api-pods 1140 $(CARGO) test --locked --test api_pods -- --test-threads=2

test-skew: test-build ## a node with an API server of the version before, 1.35, which is built first (10 minutes); as root
	scripts/prerequisites test
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build apiserver-1.35 "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	$(CARGO) test --locked --test api_pods -- --nocapture --ignored kubernetes_1_35

test-attacks: test-build ## attacks by pods, manifests, files and local users; as root, on private containerds
	scripts/prerequisites test
	$(CARGO) test --locked --test attacks -- --test-threads=2 --include-ignored

test-containerds: test-build ## what may differ between containerd 1.6, 1.7 and 2, and an upgrade in place; as root
	scripts/prerequisites test
	@# Without them (3) the tests say what they skip.
	scripts/containerd-versions fetch || [ $$? = 3 ]
	$(CARGO) test --locked --test containerds -- --test-threads=5

test-machine: test-build ## whole machines with systemd and cgroup v2 in QEMU; as root
	scripts/prerequisites machine
	tests/machine/image "$(TARGET)/machine" >/dev/null
	@# Without Go (3) the test that needs a control plane says that it is skipped.
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	$(CARGO) test --locked --test machine -- --test-threads=2

# What the agent for aarch64 must pass.
AARCH64_CORE = $(filter-out kubeadm_makes_a_machine_a_node,$(MACHINE_CORE)) signals_evict_only_the_pod_that_is_the_cause

test-aarch64: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER = aarch64-linux-gnu-gcc
test-aarch64: test-build ## the release for aarch64, in whole machines with such a processor; as root on x86-64
	scripts/prerequisites aarch64
	@[ "$$($(CARGO) test --quiet --locked --test machine -- --list --exact $(AARCH64_CORE) | grep -c ': test$$')" = $(words $(AARCH64_CORE)) ] \
	  || { echo "AARCH64_CORE in the Makefile names a test that tests/machine/main.rs does not have" >&2; exit 1; }
	@# Rust's library for aarch64 comes with: rustup target add aarch64-unknown-linux-gnu
	$(CARGO) build --release --locked --target aarch64-unknown-linux-gnu
	tests/machine/image "$(TARGET)/machine-aarch64" arm64 >/dev/null
	env NODELET_AARCH64="$(abspath $(TARGET))/aarch64-unknown-linux-gnu/release/nodelet" \
	  $(CARGO) test --locked --test machine -- --nocapture --test-threads=2 --exact $(AARCH64_CORE)

NODE_FAILURE_TIMINGS ?= real
node-failure: test-build ## experiments beside the upstream kubelet at real controller timings (NODE_FAILURE_TIMINGS=short); as root
	scripts/prerequisites test
	@# Not on the test's time, as above.
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build kubelet "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build kube-proxy "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build coredns "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	@tests/upstream/build metrics-server "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	NODE_FAILURE_TIMINGS=$(NODE_FAILURE_TIMINGS) $(CARGO) test --locked --test api_pods -- --ignored --nocapture --test-threads=1 node_failure::beside_the_kubelet

SOAK_MINUTES ?= 60
soak: test-build ## things going wrong at random for SOAK_MINUTES (60), long attacks, a million broken files, a long hang; as root
	scripts/prerequisites run
	@# Without Go (3) the test that needs a control plane says that it is skipped.
	@tests/upstream/build controlplane "$(TARGET)/upstream" >/dev/null || [ $$? = 3 ]
	$(CARGO) test --locked --test attacks -- --test-threads=2 --ignored
	$(CARGO) test --locked --test api_pods -- --nocapture --ignored --exact runtime_faults::a_runtime_that_hangs_for_minutes
	MUTATIONS=1000000 $(CARGO) test --locked --test mutations -- --nocapture
	SOAK_MINUTES=$(SOAK_MINUTES) $(CARGO) test --locked --test soak -- --nocapture

POWER_CUTS ?= 50
soak-machine: test-build ## whole machines for long: POWER_CUTS (50) losses of power, 30 pods in 512 MiB; as root
	scripts/prerequisites machine
	NODELET_POWER_CUTS=$(POWER_CUTS) $(CARGO) test --locked --test machine -- --nocapture --test-threads=2 --include-ignored --exact \
	  power_losses_in_a_churn thirty_pods_on_a_small_machine

bench: ## figures beside the upstream kubelet and the floor (docs/performance.md); as root, on a quiet machine
	scripts/prerequisites build
	scripts/prerequisites run
	scripts/prerequisites test
	$(CARGO) build --release --locked
	@# A copy, because `cargo bench` builds another one in its place, with features of libraries that only tests need.
	@mkdir -p $(TARGET)/bench && cp $(TARGET)/release/nodelet $(TARGET)/bench/nodelet
	env NODELET=$(TARGET)/bench/nodelet $(CARGO) bench --locked --bench agent

bench-doc: ## put the figures of the last `make bench`, and those that tests have measured, into docs/performance.md
	benches/publish

lint: ## formatting, clippy (warnings are errors), licences of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check licenses bans sources; \
	else echo "SKIPPED: licences of dependencies (cargo install --locked cargo-deny)"; fi

fmt: ## format the source
	$(CARGO) fmt --all
