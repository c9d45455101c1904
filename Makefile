# What a newcomer and the CI run. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

# With a cargo in front that is new enough, of those on PATH and rustup's, for shells that do not know where rustup puts it.
export PATH := $(shell scripts/rust.sh path)

# Where `make install` puts things; DESTDIR is respected.
PREFIX ?= /usr/local
# Numbers of ranks, and rounds, of `make bench`; by default 2,4,8 and 5.
RANKS ?=
ROUNDS ?=
# More arguments for benches/record.py: --keep goes on where an earlier run stopped, --quick takes minutes.
RECORD ?=
# Kills of `make bench-recovery`.
KILLS ?= 10000
# More arguments for benches/network.py: --quick leaves out what is not auto.
NETWORK ?=
# More arguments for benches/algorithms.py.
ALGORITHMS ?=
# More arguments for benches/torch.py.
TORCH ?=
# Random jobs that `make test-simulation` plays.
SEEDS ?= 20000
# A checkout of Gloo for `make test-gloo`.
GLOO ?=
# How long `make fuzz` runs each target.
SECONDS_EACH ?= 60

local_prefix := build/prefix
# Pinned and installed by scripts/setup.sh.
deny := .cache/cargo-deny/bin/cargo-deny --locked --all-features
heading = @printf '\n==> %s\n'

.PHONY: help setup setup-build setup-demo setup-bench build prefix demo bench bench-host bench-tcp bench-tls bench-algorithms bench-network bench-streams bench-recovery bench-gloo bench-torch peers install deb clean test \
  test-format test-lint test-doc test-deny advisories test-rust test-aarch64 test-miri test-loom test-in-turn test-beside test-simulation test-header test-abi abi-baseline test-c test-ibverbs test-valgrind test-asan \
  test-threads test-endurance test-instructions test-readme test-package test-deb test-systems test-demo test-torch test-gloo test-bench test-machine test-fresh test-summary tsan fuzz

help: ## lists these targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## installs what the build and all tests need and this machine lacks
	$(heading) "What this machine needs"
	@scripts/setup.sh

# What less than all tests needs.
setup-build setup-demo setup-bench: setup-%:
	@scripts/setup.sh $*

build: setup-build ## builds library and tool
	$(heading) "Build"
	@scripts/build.sh

prefix: build ## builds library and tool, and installs them into build/prefix
	$(heading) "Install into $(local_prefix)"
	@rm -rf $(local_prefix)
	@cmake --install build/cmake --prefix $(local_prefix) >build/install.log || { cat build/install.log; exit 1; }

demo: setup-demo test-demo ## trains on handwritten digits with 1 rank and with 4, and compares

bench: bench-host bench-tcp ## times collectives beside other implementations, in turn, and records that in docs/benchmarks

bench-host: setup-bench prefix peers ## the part of it on one host, beside Open MPI, MPICH, Intel MPI and oneCCL
	$(heading) "Collectives on one host, beside Open MPI, MPICH, Intel MPI and oneCCL"
	@benches/record.py host $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(RANKS),--ranks $(RANKS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-tcp: setup-bench prefix peers ## the part of it over TCP: allreduce beside Gloo, Open MPI and the floor
	$(heading) "Allreduce over TCP, beside Gloo, Open MPI and the floor"
	@benches/record.py tcp $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(RANKS),--ranks $(RANKS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-tls: setup-bench prefix ## times allreduce over TLS beside a bare pair of processes on the same TLS, and records it in docs/benchmarks
	$(heading) "Allreduce over TLS, beside a bare pair"
	@benches/peers/build.sh build/peers tls_pair
	@benches/record.py tls $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-algorithms: setup-bench prefix ## times every algorithm beside what auto chooses, and records it in docs/benchmarks
	$(heading) "Every algorithm, and what auto chooses"
	@benches/algorithms.py $(local_prefix)/bin/gloo-rs docs/benchmarks $(ALGORITHMS)

bench-network: setup-bench prefix ## times collectives between network namespaces with 1 Gbit/s links, and records it in docs/benchmarks
	$(heading) "Collectives between hosts with 1 Gbit/s links"
	@benches/network.py $(local_prefix)/bin/gloo-rs docs/benchmarks $(NETWORK)

bench-streams: setup-bench prefix ## times allreduce between network namespaces by several connections, and records it in docs/benchmarks
	$(heading) "Links of several connections"
	@benches/streams.py $(local_prefix)/bin/gloo-rs docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS))

bench-recovery: setup-build ## kills ranks in the middle of collectives, KILLS times, and records how soon the others know and go on in docs/benchmarks
	$(heading) "Ranks that are killed"
	@benches/recovery.py docs/benchmarks --kills $(KILLS)

bench-gloo: setup-bench prefix ## times a program written for Gloo over Gloo and over gloo_rs, and records it in docs/benchmarks
	$(heading) "A program written for Gloo, over Gloo and over gloo_rs"
	@benches/peers/build.sh build/peers gloo gloo_headers floor bare
	@benches/record.py gloo $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-torch: setup-bench prefix ## times allreduce of torch.distributed beside its own backend over Gloo, and records it in docs/benchmarks
	$(heading) "torch.distributed, over gloo_rs and over Gloo"
	@benches/torch.py $(local_prefix) docs/benchmarks $(TORCH)

peers:
	@benches/peers/build.sh build/peers

install: ## installs into PREFIX (default /usr/local); after `make build`, sudo make install builds nothing
	@scripts/install.sh "$(PREFIX)"

deb: ## makes a Debian package: build/gloo-rs_VERSION_ARCHITECTURE.deb
	$(heading) "Debian package"
	@scripts/deb.sh

clean: ## removes what was built; keeps what was downloaded
	@rm -rf build
	@cargo clean --quiet

test: setup ## every test
	@mkdir -p build
	@timeout 3h nice -n 19 $(MAKE) test-beside >build/beside.log 2>&1 & beside=$$!; trap "kill $$beside 2>/dev/null" EXIT; \
	  $(MAKE) test-in-turn; status=0; wait $$beside || status=$$?; trap - EXIT; cat build/beside.log; exit $$status
	@$(MAKE) test-summary

# The one after the other; what they build is there if test-beside has been fast enough.
test-in-turn: test-format test-lint test-doc test-deny test-rust test-simulation prefix test-header test-abi test-c test-valgrind test-asan test-endurance test-instructions test-readme test-package test-aarch64 test-ibverbs test-threads test-systems test-demo test-torch test-bench test-machine

# What no clock counts for, beside them on cores that they leave idle: Miri and loom, and builds in folders of their own.
test-beside: test-miri test-loom
	$(heading) "Builds ahead"
	@scripts/test-aarch64.sh build
	@scripts/asan.sh
	@scripts/tsan.sh build
	@scripts/test-systems.sh build

test-format: ## formatting
	$(heading) "Formatting"
	@cargo fmt --check

test-lint: ## clippy without features, with each alone, with all; all warnings being errors
	$(heading) "Lints, feature by feature"
	@scripts/lint.sh

test-doc: ## the Rust documentation has no broken links
	$(heading) "Rust documentation"
	@scripts/doc.sh

test-deny: ## licences, sources and bans of all crates that are depended on
	$(heading) "Dependencies"
	@$(deny) --offline check --hide-inclusion-graph licenses bans sources

advisories: ## whether an advisory is known against a crate that is depended on; asks the network, so it is no part of make test
	$(heading) "Advisories"
	@$(deny) check advisories

test-rust: ## the library's and the tool's own tests
	$(heading) "Rust tests"
	@cargo test --locked --all-features

test-aarch64: ## the library's own tests of kernels, messages and the C ABI on aarch64, by qemu
	$(heading) "aarch64"
	@scripts/test-aarch64.sh

test-miri: ## the library's own tests of what has unsafe code, under Miri
	$(heading) "Miri"
	@scripts/miri.sh

test-loom: ## who polls, who sleeps and who is woken, in every order of events
	$(heading) "loom"
	@scripts/loom.sh

test-simulation: ## whole jobs in simulation, SEEDS of them at random
	$(heading) "Whole jobs in simulation"
	@SEEDS=$(SEEDS) cargo test --locked --all-features --lib simulation::seeds -- --nocapture

test-header: prefix ## the header is up to date, is C11 and C++17, and tells what the library exports
	$(heading) "Header"
	@CBINDGEN=.cache/cbindgen/bin/cbindgen scripts/check-header.sh $(local_prefix)/lib/libgloo_rs.so

test-abi: ## the C ABI is compatible with the last release's
	$(heading) "The C ABI, beside the last release's"
	@scripts/abi.sh check

abi-baseline: ## records the C ABI as a release's, with which later versions must be compatible
	$(heading) "The C ABI of a release"
	@scripts/abi.sh write

test-c: prefix ## C tests against the package in build/prefix
	$(heading) "C tests against the installed package"
	@scripts/test-c.sh $(local_prefix)

test-ibverbs: prefix ## the transport ibverbs over software RoCE, in emulated machines
	$(heading) "InfiniBand's verbs, in emulated machines"
	@scripts/test-ibverbs.sh $(local_prefix)

test-asan: prefix ## C tests with AddressSanitizer and LeakSanitizer, as the library below them
	$(heading) "C tests with AddressSanitizer"
	@scripts/test-c.sh $(local_prefix) asan

test-valgrind: prefix ## C tests under valgrind
	$(heading) "C tests under valgrind"
	@scripts/test-c.sh $(local_prefix) valgrind

test-threads: ## many threads, in C and in Rust, under ThreadSanitizer
	$(heading) "Threads"
	@scripts/tsan.sh

test-endurance: prefix ## long runs, with memory and descriptors flat
	$(heading) "Endurance"
	@scripts/test-c.sh $(local_prefix) endurance

test-instructions: prefix ## instructions of a small allreduce, as recorded
	$(heading) "Instructions from the call to the first byte"
	@scripts/test-instructions.sh $(local_prefix)

test-readme: prefix ## the examples of README.md and docs/recovery.md
	$(heading) "README's examples"
	@scripts/test-readme.sh $(local_prefix)

test-package: prefix ## find_package, add_subdirectory, pkg-config, moving the prefix
	$(heading) "The package, as users take it"
	@scripts/test-package.sh $(local_prefix)

test-deb: deb ## the Debian package, installed in a minimal Debian
	$(heading) "The Debian package, in a minimal Debian"
	@scripts/test-deb.sh

test-systems: prefix ## lints for macOS and Windows; what is linked for Windows, run by wine
	$(heading) "macOS and Windows"
	@scripts/test-systems.sh $(local_prefix)

test-demo: setup-demo prefix ## the digits example
	$(heading) "Demo: handwritten digits, data-parallel"
	@scripts/demo.sh $(local_prefix)

test-torch: prefix ## the backend of PyTorch's torch.distributed, beside its own over Gloo
	$(heading) "PyTorch's torch.distributed"
	@scripts/test-torch.sh $(local_prefix)

test-gloo: prefix ## Gloo's own tests over gloo_rs; they are downloaded, or taken from the checkout GLOO
	$(heading) "Gloo's own tests"
	@scripts/test-gloo.sh $(local_prefix) "$(GLOO)"

test-bench: setup-bench prefix ## the benchmark's records, at small sizes and with few peers
	$(heading) "The benchmark's records"
	@python3 benches/test_report.py
	@benches/peers/build.sh build/peers openmpi gloo gloo_headers floor bare
	@benches/record.py tcp $(local_prefix)/bin/gloo-rs build/peers build/bench-test --ranks 2,4 --rounds 1 --sizes 4
	@benches/record.py gloo $(local_prefix)/bin/gloo-rs build/peers build/bench-test --rounds 1 --sizes 4
	@benches/torch.py $(local_prefix) build/bench-test --rounds 1 --sizes 4
	@benches/record.py host $(local_prefix)/bin/gloo-rs build/peers build/bench-test --ranks 2,4 --quick --sizes 1Ki
	@benches/record.py tls $(local_prefix)/bin/gloo-rs build/peers build/bench-test --rounds 1 --sizes 4
	@benches/algorithms.py $(local_prefix)/bin/gloo-rs build/bench-test --ranks 2 --sizes 4,64Ki --budget 5
	@benches/recovery.py build/bench-test --kills 12 --ranks 2,4 --dev
	@benches/network.py $(local_prefix)/bin/gloo-rs build/bench-test --hosts 3 --per-host 2 --size 2Mi --iterations 1 --quick
	@benches/streams.py $(local_prefix)/bin/gloo-rs build/bench-test --quick

test-machine: ## the same as test-fresh, if what sets a machine up has changed since that passed
	$(heading) "A fresh machine, if its set-up has changed"
	@scripts/test-fresh.sh if-changed

test-fresh: ## set-up, builds and a bit of every test on a minimal Debian, as root and as an ordinary user; needs root
	$(heading) "A fresh machine"
	@scripts/setup.sh fresh
	@scripts/test-fresh.sh

tsan: ## the Rust tests with many threads under ThreadSanitizer; needs rust-src
	$(heading) "ThreadSanitizer"
	@scripts/tsan.sh rust

fuzz: ## every fuzz target for SECONDS_EACH; needs a nightly toolchain and cargo-fuzz
	$(heading) "Fuzzing"
	@scripts/fuzz.sh $(SECONDS_EACH)

test-summary:
	$(heading) "All passed"
	@echo "NOT TESTED: CUDA. This version has no CUDA part, so nothing on a GPU was run."
