#!/bin/bash
# The tests that scripts/test-ibverbs.sh runs in one guest. The folder also has verbs_smoke, and c-tests-LABEL-plain.sh and c-tests-LABEL-asan.sh,
# lists of the C tests; LIBRARY_TESTS and TRANSPORT_TESTS are the programs of the Rust tests, ASAN_SMOKE that of asan_smoke.c, DIGITS and DIGITS_DATA the
# example and its data.
set -euo pipefail
. ./groups.sh

if group verbs "the guest's devices work, without gloo_rs"; then
  try "RDMA WRITE with immediate, 1 byte" ./verbs_smoke local rxe0 rxe0 1 20
  try "of several packets, on the other device" ./verbs_smoke local rxe1 rxe1 100000 10
  try "by a user who may lock little memory" setpriv --reuid user --regid user --clear-groups bash -c 'ulimit -l 64 && ./verbs_smoke local rxe0 rxe0 4096 10'
  # The limit is that of root's, not the device's.
  try "who may not lock more" setpriv --reuid user --regid user --clear-groups bash -c 'ulimit -l 64 && ! ./verbs_smoke local rxe0 rxe0 1000000 1'
  # With shells that are not interactive, what is left over is to be seen.
  try "nothing is left of them" bash -c 'rdma resource show qp | grep -v "type GSI" | (! grep .)'
fi

if group plain "programs written for Gloo, and contexts, over $TRANSPORT"; then
  . ./c-tests-ibverbs-plain.sh
fi

# What follows is about ibverbs, whatever TRANSPORT is.
if group links "the requirements on links, over the device"; then
  try "by two ports" env GLOO_RS_TEST_IBVERBS=rxe0,rxe1 "$LIBRARY_TESTS" testing::conformance:: --skip mixed --test-threads 2
fi

if group rust "collectives with 2, 3 and 6 ranks, large messages, what is left of contexts"; then
  rust() { # NAME OF THE TEST
    try "$1" bash -c 'rust_test "$@"' - "$TRANSPORT_TESTS" "ibverbs::$1"
  }
  export GLOO_RS_TEST_IBVERBS=rxe0,rxe1
  rust every_algorithm_of_every_collective
  rust calls_of_several_threads
  rust a_message_larger_than_the_devices_longest_is_written_from_memory_to_memory
  rust a_collective_on_more_than_the_devices_longest_message
  rust nothing_is_left_of_many_contexts
fi

if group failures "ranks that die or stop, too little memory, devices that are not there"; then
  for check in killed stopped locked names down absent; do try "$check" ./checks.sh "$check"; done
fi

if group yama "ranks that Yama lets read each other's memory, or not"; then
  try tracer ./checks.sh tracer
fi

with_asan() { # SCRIPT
  # Freed memory is kept from use, so that accesses to it are seen, but a guest has too little for 256 MiB of each process. An allocation that
  # is too large returns NULL, as without AddressSanitizer: there are tests of that. Stacks of functions that have returned are not watched,
  # which would take a quarter longer, or more. Reports name functions; the offsets are for a machine that has the lines.
  export ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16:allocator_may_return_null=1:detect_stack_use_after_return=0
  ASAN_OPTIONS+=":allow_addr2line=1:stack_trace_format='#%n %p in %f (%m+%o)'"
  for error in program library leak; do try "an error is seen: $error" ./checks.sh reported "$error" "$ASAN_SMOKE"; done
  . "./$1"
  unset ASAN_OPTIONS
}
if group asan "C tests, over $TRANSPORT, with AddressSanitizer, as the library below them; leaks, too"; then
  with_asan c-tests-ibverbs-asan.sh
fi

if group tool "the tool shows the devices"; then
  try info ./checks.sh info
fi
if group example "the digits example"; then
  try digits ./checks.sh digits "$DIGITS" "$DIGITS_DATA"
fi

if group links-more "the requirements on links, over one port; two have all code that one has"; then
  try "by one port" env GLOO_RS_TEST_IBVERBS=rxe0 "$LIBRARY_TESTS" testing::conformance:: --skip mixed --test-threads 2
fi
# Programs that have no code of their own for ibverbs run there, too.
if group plain-more "more programs written for Gloo, over $TRANSPORT"; then
  . ./c-tests-ibverbs-more-plain.sh
fi
if group asan-more "more C tests, over $TRANSPORT, with AddressSanitizer"; then
  with_asan c-tests-ibverbs-more-asan.sh
fi

end_of_groups
