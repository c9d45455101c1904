# What a newcomer and the CI run. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

# Where rustup puts cargo, for shells that do not know.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# Where `make install` puts things; DESTDIR is respected.
PREFIX ?= /usr/local
# Numbers of ranks, and rounds, of `make bench`.
RANKS ?= 2,4,8
ROUNDS ?= 5
# More arguments for benches/record.py: --keep goes on where an earlier run stopped.
RECORD ?=
# More arguments for benches/network.py: --quick leaves out what is not auto.
NETWORK ?=
# More arguments for benches/algorithms.py.
ALGORITHMS ?=
# How long `make fuzz` runs each target.
SECONDS_EACH ?= 60

local_prefix := build/prefix
peers_flags := -std=c++17 -O2 -Wall -Wextra -Werror
heading = @printf '\n==> %s\n'

.PHONY: help setup prefix demo bench bench-algorithms bench-network peers install clean test \
  test-format test-lint test-rust test-header test-c test-valgrind \
  test-threads test-endurance test-instructions test-readme test-package test-demo test-bench test-summary tsan fuzz

help: ## lists these targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## installs what the build and the tests need and this machine lacks
	$(heading) "What this machine needs"
	@scripts/setup.sh

prefix: setup ## builds library and tool, and installs them into build/prefix
	$(heading) "Build and install into $(local_prefix)"
	@mkdir -p build
	@cmake -S . -B build/cmake >build/cmake.log || { cat build/cmake.log; exit 1; }
	@cmake --build build/cmake
	@rm -rf $(local_prefix)
	@cmake --install build/cmake --prefix $(local_prefix) >build/install.log || { cat build/install.log; exit 1; }

demo: prefix test-demo ## trains on handwritten digits with 1 rank and with 4, and compares

bench: prefix peers ## times allreduce beside Gloo, Open MPI and the floor, in turn, and records it in docs/benchmarks
	$(heading) "Benchmarks, beside Gloo, Open MPI and the floor"
	@benches/record.py $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks --ranks $(RANKS) --rounds $(ROUNDS) $(RECORD)

bench-algorithms: prefix ## times every algorithm beside what auto chooses, and records it in docs/benchmarks
	$(heading) "Every algorithm, and what auto chooses"
	@benches/algorithms.py $(local_prefix)/bin/gloo-rs docs/benchmarks $(ALGORITHMS)

bench-network: prefix ## times collectives between network namespaces with 1 Gbit/s links, and records it in docs/benchmarks
	$(heading) "Collectives between hosts with 1 Gbit/s links"
	@scripts/setup.sh bench
	@benches/network.py $(local_prefix)/bin/gloo-rs docs/benchmarks $(NETWORK)

peers:
	@scripts/setup.sh bench
	@mkdir -p build/peers
	@g++ $(peers_flags) benches/peers/gloo.cpp -lgloo -o build/peers/gloo_peer
	@mpicxx.openmpi $(peers_flags) -DOMPI_SKIP_MPICXX benches/peers/openmpi.cpp -o build/peers/openmpi_peer
	@g++ $(peers_flags) benches/peers/floor.cpp -o build/peers/floor

install: ## installs into PREFIX (default /usr/local)
	@cmake -S . -B build/cmake
	@cmake --build build/cmake
	@cmake --install build/cmake --prefix $(PREFIX)

clean: ## removes what was built; keeps what was downloaded
	@rm -rf build
	@cargo clean --quiet

test: setup test-format test-lint test-rust prefix test-header test-c test-valgrind test-threads test-endurance test-instructions test-readme test-package test-demo test-bench test-summary ## every test

test-format: ## formatting
	$(heading) "Formatting"
	@cargo fmt --check

test-lint: ## clippy, all warnings being errors
	$(heading) "Lints"
	@cargo clippy --locked --all-targets -- -D warnings

test-rust: ## the library's and the tool's own tests
	$(heading) "Rust tests"
	@cargo test --locked

test-header: ## the header is up to date, is C11 and C++17, and tells what the library exports
	$(heading) "Header"
	@CBINDGEN=.cache/cbindgen/bin/cbindgen scripts/check-header.sh $(local_prefix)/lib/libgloo_rs.so

test-c: ## C tests against the package in build/prefix
	$(heading) "C tests against the installed package"
	@scripts/test-c.sh $(local_prefix)

test-valgrind: ## the same under valgrind
	$(heading) "C tests under valgrind"
	@scripts/test-c.sh $(local_prefix) valgrind

test-threads: ## C tests with many threads under ThreadSanitizer
	$(heading) "Threads"
	@scripts/tsan.sh

test-endurance: ## long runs, with memory and descriptors flat
	$(heading) "Endurance"
	@scripts/test-c.sh $(local_prefix) endurance

test-instructions: ## instructions from a call to the first byte sent, as recorded
	$(heading) "Instructions from the call to the first byte"
	@scripts/test-instructions.sh $(local_prefix)

test-readme: ## README.md's examples
	$(heading) "README's examples"
	@scripts/test-readme.sh $(local_prefix)

test-package: ## find_package, add_subdirectory, pkg-config, moving the prefix
	$(heading) "The package, as users take it"
	@scripts/test-package.sh $(local_prefix)

test-demo: ## the digits example
	$(heading) "Demo: handwritten digits, data-parallel"
	@scripts/demo.sh $(local_prefix)

test-bench: peers ## the benchmark's record, at one small size
	$(heading) "The benchmark's record"
	@python3 benches/test_report.py
	@benches/record.py $(local_prefix)/bin/gloo-rs build/peers build/bench-test --ranks 2,4 --rounds 1 --sizes 4
	@benches/algorithms.py $(local_prefix)/bin/gloo-rs build/bench-test --ranks 2 --sizes 4,64Ki --budget 5
	@benches/network.py $(local_prefix)/bin/gloo-rs build/bench-test --hosts 3 --per-host 2 --size 2Mi --iterations 1 --quick

tsan: ## the Rust tests with many threads under ThreadSanitizer; needs rust-src
	$(heading) "ThreadSanitizer"
	@scripts/tsan.sh rust

fuzz: ## every fuzz target for SECONDS_EACH; needs a nightly toolchain and cargo-fuzz
	$(heading) "Fuzzing"
	@scripts/fuzz.sh $(SECONDS_EACH)

test-summary:
	$(heading) "All passed"
	@echo "NOT TESTED: CUDA. This version has no CUDA part, so nothing on a GPU was run."
