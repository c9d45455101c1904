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
# More arguments for benches/peers/pytorch.py.
TORCH ?=
# How much the Rust tests prove: check, test or more (src/tier.rs).
TIER ?= check
ifneq ($(TIER),check)
# Optimised, the tests take a fraction of the time, which is worth it where much is tested. At level 1 they are compiled in 0.8 of the time of
# level 2, and whole jobs in simulation take twice as long.
export CARGO_PROFILE_TEST_OPT_LEVEL := 2
# Which lines a function has would take a fifth of the compiler's time. A panic names its line without that.
export CARGO_PROFILE_TEST_DEBUG := false
# Nothing is built a second time after a change, and what that needs is gigabytes.
export CARGO_INCREMENTAL := 0
else
# At level 1 these tests take half of the processor time of level 0. A first build takes two and a half times as long, one after an edit little more,
# since it is incremental.
export CARGO_PROFILE_TEST_OPT_LEVEL := 1
# Some tests wait for most of their time. In `make test`, other lanes use the cores meanwhile.
export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
endif
# Which tests of a part: a part of their names; for C tests a regular expression.
T ?=
# Which part of `make test-more`: k/n. All, if it is empty.
SHARD ?=
# A checkout of Gloo for `make test-gloo`.
GLOO ?=
# How long `make test-fuzz` runs each target.
SECONDS_EACH ?= 10

local_prefix := build/prefix
heading = @printf '\n==> %s\n'

# What less than all tests, or a part of `make test-more`, needs: levels of scripts/setup.sh.
levels := $(addprefix setup-,build demo bench torch python systems aarch64 threads fuzz deny fresh test-more)

.PHONY: help setup build prefix demo bench bench-host bench-tcp bench-tls bench-algorithms bench-network \
  wheel wheels python-abi bench-streams bench-reads bench-recovery bench-membership bench-overlap bench-gloo bench-torch bench-programs peers install header clean check test test-more advisories abi-baseline deb \
  $(shell sed -n 's/^\(test-[a-z0-9-]*\):.*/\1/p' Makefile) $(levels)

help: ## lists these targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## installs what the build and `make test` need and this machine lacks
	$(heading) "What this machine needs"
	@scripts/setup.sh

$(levels): setup-%:
	@scripts/setup.sh $*

build: setup-build ## builds library and tool
	$(heading) "Build"
	@scripts/build.sh

prefix: build ## builds library and tool, and installs them into build/prefix
	$(heading) "Install into $(local_prefix)"
	@scripts/prefix.sh

demo: setup-demo test-demo ## trains on handwritten digits with 1 rank and with 4, and compares

bench: bench-host bench-tcp ## times collectives beside other implementations, in turn, and records that in docs/benchmarks

bench-host: setup-bench prefix peers ## the part of it on one host, beside Open MPI, MPICH, Intel MPI and oneCCL
	$(heading) "Collectives on one host, beside Open MPI, MPICH, Intel MPI and oneCCL"
	@benches/record.py host $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(RANKS),--ranks $(RANKS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-tcp: setup-bench prefix peers ## the part of it over TCP: allreduce beside Gloo, Open MPI and the floor
	$(heading) "Allreduce over TCP, beside Gloo, Open MPI and the floor"
	@benches/record.py tcp $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(RANKS),--ranks $(RANKS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-programs: setup-bench prefix ## times what programs do beside the MPIs and oneCCL: late ranks, different calls, many requests; records it in docs/benchmarks
	$(heading) "Late ranks, different calls and many requests, beside the MPIs and oneCCL"
	@benches/peers/build.sh build/peers openmpi mpich impi oneccl bare
	@benches/record.py programs $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(RANKS),--ranks $(RANKS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

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

bench-reads: setup-bench prefix ## times allreduce where no process may read another's memory, and records it in docs/benchmarks
	$(heading) "Without reads of other processes"
	@benches/reads.py $(local_prefix)/bin/gloo-rs docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS))

bench-recovery: setup-build ## kills ranks in the middle of collectives, KILLS times, and records how soon the others know and go on in docs/benchmarks
	$(heading) "Ranks that are killed"
	@benches/recovery.py docs/benchmarks --kills $(KILLS)

bench-membership: setup-build prefix ## times a new membership by a reconfigure beside one by a new context, and records it in docs/benchmarks
	$(heading) "A new membership"
	@benches/membership.py $(local_prefix) docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS))

bench-overlap: setup-bench prefix ## times allreduce beside the multiplication of matrices on the same core, and records it in docs/benchmarks
	$(heading) "Work beside an allreduce"
	@benches/overlap.py $(local_prefix) docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS))

bench-gloo: setup-bench prefix ## times a program written for Gloo over Gloo and over gloo_rs, and records it in docs/benchmarks
	$(heading) "A program written for Gloo, over Gloo and over gloo_rs"
	@benches/peers/build.sh build/peers gloo gloo_headers floor bare
	@benches/record.py gloo $(local_prefix)/bin/gloo-rs build/peers docs/benchmarks $(if $(ROUNDS),--rounds $(ROUNDS)) $(RECORD)

bench-torch: wheel ## times collectives of torch.distributed and steps of training beside its own backend over Gloo, and records them in docs/benchmarks
	$(heading) "torch.distributed, over gloo_rs and over Gloo"
	@scripts/test-torch.sh bench --record docs/benchmarks $(TORCH)

peers:
	@benches/peers/build.sh build/peers

install: ## installs into PREFIX (default /usr/local); after `make build`, sudo make install builds nothing
	@scripts/install.sh "$(PREFIX)"

deb: ## makes a Debian package: build/gloo-rs_VERSION_ARCHITECTURE.deb
	$(heading) "Debian package"
	@scripts/deb.sh

wheel: setup-python prefix ## makes Python's package: build/wheel/gloo_rs-VERSION-cp311-abi3-PLATFORM.whl
	$(heading) "Python's package"
	@scripts/wheel.sh $(local_prefix)

wheels: setup-python setup-aarch64 ## makes Python's package for Linux with glibc 2.17 and later, for x86_64 and aarch64: build/manylinux/ARCHITECTURE/wheel
	$(heading) "Python's package for glibc 2.17 and later"
	@scripts/manylinux.sh x86_64
	@scripts/manylinux.sh aarch64

python-abi: ## makes python/src/abi.rs anew of include/gloo_rs.h
	@scripts/bindgen.sh >python/src/abi.rs

header: ## makes include/gloo_rs.h anew of src/ffi
	@WRITE=1 scripts/cargo.sh test --test header

clean: ## removes what was built; keeps what was downloaded
	@rm -rf build
	@cargo clean --quiet

check: ## what a change needs while one works, in minutes; installs nothing. With T=PATTERN only tests of that name
ifeq ($(T),)
	@scripts/tiers.sh check
else
	@$(MAKE) test-rust test-jobs
endif

test: ## the truth about behaviour: every test that `make test-more` does not say more of the same about
	@scripts/tiers.sh test

test-more: ## what proves more of the same, in shards: SHARD=1/10. All of it before a release
	@scripts/tiers.sh more $(SHARD)

# The parts. scripts/tiers.sh says which tier and shard each belongs to; each can be run alone.

test-format: ## formatting
	$(heading) "Formatting"
	@cargo fmt --all --check

test-lint: ## all Rust is compiled, tests and benchmarks included, without a warning of compiler or clippy
	$(heading) "Rust tests and benchmarks: compiler's and clippy's warnings"
	@mkdir -p build
	@scripts/cargo.sh test --all-targets --no-run --color never 2>&1 | tee build/lint.log
	@! grep -q '^warning' build/lint.log || { echo "test-lint: warnings, see above; they are errors here" >&2; exit 1; }
	@scripts/compiled-once.sh

test-features: ## clippy without features, and each feature alone
	$(heading) "Lints, feature by feature"
	@scripts/lint.sh

test-doc: ## the Rust documentation has no broken links
	$(heading) "Rust documentation"
	@scripts/doc.sh

test-deny: setup-deny ## licences, sources and bans of all crates that are depended on
	$(heading) "Dependencies"
	@scripts/deny.sh --offline check --hide-inclusion-graph licenses bans sources

advisories: ## whether an advisory is known against a crate that is depended on; asks the network, so it is no part of the tests
	$(heading) "Advisories"
	@scripts/deny.sh check advisories

test-rust: ## the library's and the tool's own tests; T=PATTERN, TIER=test, TIER=more
	$(heading) "Rust tests of library and tool"
	@GLOO_RS_TEST_TIER=$(TIER) scripts/cargo.sh test --lib --bins -- $(if $(T),"$(T)",$(if $(filter check,$(TIER)),,--skip simulation::seeds --skip simulation::shared))

test-jobs: ## integration tests: jobs of threads, of processes, on several hosts; the tool; T=PATTERN, TIER=test, TIER=more
	$(heading) "Integration tests"
	@scripts/test-jobs.sh $(TIER) "$(T)"

test-seeds: ## whole jobs in simulation, a seed each; SEED=n in the environment repeats one
	$(heading) "Whole jobs in simulation"
	@DRAW=$$(scripts/draw.sh) GLOO_RS_TEST_TIER=$(TIER) scripts/cargo.sh test --lib -- simulation::seeds simulation::shared --nocapture

test-sweep: ## all schedules, for up to 1024 ranks; every rank of 2 to 6 killed at every step; all orders of requests
	$(heading) "Schedules of many ranks"
	@GLOO_RS_TEST_TIER=more scripts/cargo.sh test --lib -- collective:: simulation::exhaustive simulation::orders --include-ignored

test-aarch64: setup-aarch64 ## the library's own tests of kernels, messages and the C ABI on aarch64, by qemu
	$(heading) "aarch64"
	@scripts/test-aarch64.sh

test-miri: ## the library's own tests of what has unsafe code, under Miri
	$(heading) "Miri"
	@scripts/miri.sh

test-loom: ## who polls, who sleeps and who is woken, in every order of events
	$(heading) "loom"
	@GLOO_RS_TEST_TIER=$(TIER) scripts/loom.sh

test-header: prefix ## the headers are C11, C++17 and C++20, and tell what the library exports
	$(heading) "Header"
	@scripts/check-header.sh $(local_prefix)/lib/libgloo_rs.so

test-abi: ## the C ABI is compatible with the last release's
	$(heading) "The C ABI, beside the last release's"
	@scripts/abi.sh check

abi-baseline: ## records the C ABI as a release's, with which later versions must be compatible
	$(heading) "The C ABI of a release"
	@scripts/abi.sh write

test-c-core: ## a few C programs against the library that `cargo test` has built; T=PATTERN
	$(heading) "C tests against the library of cargo test"
	@scripts/test-c.sh core "$(T)"

test-c: prefix ## C tests against the package in build/prefix; T=PATTERN
	$(heading) "C tests against the installed package"
	@scripts/test-c.sh native "$(T)"

test-c-more: prefix ## the combinations of program and transport that test-c leaves out
	$(heading) "C tests, more combinations"
	@scripts/test-c.sh more "$(T)"

test-valgrind: prefix ## C tests under valgrind; T=PATTERN
	$(heading) "C tests under valgrind"
	@scripts/test-c.sh valgrind "$(T)"

test-asan: prefix ## C tests with AddressSanitizer and LeakSanitizer, as the library below them; T=PATTERN
	$(heading) "C tests with AddressSanitizer"
	@scripts/test-c.sh asan "$(T)"

test-endurance: prefix ## long runs, with memory and descriptors flat
	$(heading) "Endurance"
	@scripts/test-c.sh endurance

test-ibverbs: prefix ## the transport ibverbs over software RoCE, in an emulated machine, with AddressSanitizer
	$(heading) "InfiniBand's verbs, in an emulated machine"
	@scripts/test-ibverbs.sh $(local_prefix) one

test-ibverbs-more: prefix ## the same of programs that have no code of their own for it
	$(heading) "InfiniBand's verbs, more programs"
	@scripts/test-ibverbs.sh $(local_prefix) more

test-ibverbs-two: prefix ## the same between two emulated machines
	$(heading) "InfiniBand's verbs, between two emulated machines"
	@scripts/test-ibverbs.sh $(local_prefix) two

test-threads: setup-threads ## many threads, in C and in Rust, under ThreadSanitizer
	$(heading) "Threads"
	@scripts/tsan.sh

test-instructions: prefix ## instructions of a small allreduce, as recorded
	$(heading) "Instructions from the call to the first byte"
	@scripts/test-instructions.sh $(local_prefix)

test-readme: prefix ## the examples of README.md, docs/recovery.md and examples/
	$(heading) "README's examples, and those of examples/"
	@scripts/test-readme.sh $(local_prefix)

test-package: prefix ## find_package, add_subdirectory, pkg-config, moving the prefix
	$(heading) "The package, as users take it"
	@scripts/test-package.sh $(local_prefix)

test-deb: setup-fresh deb ## the Debian package, installed in a minimal Debian
	$(heading) "The Debian package, in a minimal Debian"
	@scripts/test-deb.sh

test-systems: setup-systems prefix ## lints for macOS and Windows; what is linked for Windows, run by wine
	$(heading) "macOS and Windows"
	@scripts/test-systems.sh $(local_prefix)

test-ptx: setup-systems ## the kernels for GPUs are what their source compiles to, and NVIDIA's assemblers take them; needs no GPU
	$(heading) "Kernels for NVIDIA's GPUs"
	@scripts/ptx.sh check

test-demo: setup-demo prefix ## the digits example
	$(heading) "Demo: handwritten digits, data-parallel"
	@scripts/demo.sh $(local_prefix)

test-recovery: ## ranks are killed in the middle of collectives, over shared memory and over TCP
	$(heading) "Ranks that are killed"
	@for shared in 1 0; do GLOO_RS_SHM=$$shared scripts/cargo.sh test --test recovery -- --kills 1000; done

test-scale: ## many ranks on one machine
	$(heading) "Many ranks"
	@scripts/cargo.sh test --test jobs -- --test-threads 1 scale::

test-torch: wheel ## gloo_rs.torch, beside PyTorch's own backend, and by PyTorch's own tests, in a virtual environment in build/; T=PATTERN
	$(heading) "PyTorch's torch.distributed"
	@scripts/test-torch.sh own "$(T)"

test-torch-gloo: wheel ## PyTorch's own tests over gloo_rs under the name gloo
	$(heading) "PyTorch's torch.distributed, as gloo"
	@scripts/test-torch.sh gloo

test-beside-torch: setup-torch prefix ## the headers of Gloo's API in programs that use PyTorch's own Gloo
	$(heading) "Gloo's API beside PyTorch"
	@scripts/test-beside-torch.sh $(local_prefix)

test-python: wheel ## Python's package, installed in a virtual environment in build/; T=PATTERN
	$(heading) "Python"
	@scripts/test-python.sh "$(T)"

test-manylinux: setup-python setup-aarch64 ## Python's package for glibc 2.17 and later: its tests, and on aarch64 a C program by qemu
	$(heading) "Python's package for glibc 2.17 and later"
	@scripts/test-manylinux.sh

test-gloo: prefix ## Gloo's own tests over gloo_rs; they are downloaded, or taken from the checkout GLOO
	$(heading) "Gloo's own tests"
	@scripts/test-gloo.sh $(local_prefix) "$(GLOO)"

test-bench: setup-bench prefix ## the benchmark's records, at small sizes and with few peers
	$(heading) "The benchmark's records"
	@python3 benches/test_report.py
	@benches/peers/build.sh build/peers openmpi gloo gloo_headers floor bare
	@benches/record.py tcp $(local_prefix)/bin/gloo-rs build/peers build/bench-test --ranks 2,4 --rounds 1 --sizes 4
	@benches/record.py gloo $(local_prefix)/bin/gloo-rs build/peers build/bench-test --rounds 1 --sizes 4
	@benches/record.py host $(local_prefix)/bin/gloo-rs build/peers build/bench-test --ranks 2,4 --quick --sizes 1Ki
	@benches/record.py tls $(local_prefix)/bin/gloo-rs build/peers build/bench-test --rounds 1 --sizes 4
	@benches/record.py programs $(local_prefix)/bin/gloo-rs build/peers build/bench-test --ranks 2 --quick --sizes 1Ki
	@benches/algorithms.py $(local_prefix)/bin/gloo-rs build/bench-test --ranks 2 --sizes 4,64Ki --budget 5
	@benches/recovery.py build/bench-test --kills 12 --ranks 2,4 --dev
	@benches/membership.py $(local_prefix) build/bench-test --ranks 2,3 --rounds 1
	@benches/network.py $(local_prefix)/bin/gloo-rs build/bench-test --hosts 3 --per-host 2 --size 2Mi --iterations 1 --quick
	@benches/streams.py $(local_prefix)/bin/gloo-rs build/bench-test --quick
	@benches/reads.py $(local_prefix)/bin/gloo-rs build/bench-test --quick
	@benches/overlap.py $(local_prefix) build/bench-test --quick

test-fuzz: setup-fuzz ## every fuzz target for SECONDS_EACH
	$(heading) "Fuzzing"
	@scripts/fuzz.sh run $(SECONDS_EACH)

test-fresh: setup-fresh ## README's commands on a minimal Debian, as an ordinary user: set-up, builds and a bit of what make test needs; needs root
	$(heading) "A fresh machine"
	@scripts/test-fresh.sh test

test-fresh-more: setup-fresh ## the same with the parts of make test-more; needs root
	$(heading) "A fresh machine, and what make test-more installs"
	@scripts/test-fresh.sh more
