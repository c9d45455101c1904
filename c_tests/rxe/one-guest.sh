#!/bin/bash
# The tests that scripts/test-ibverbs.sh runs in one guest. The folder also has verbs_smoke, and c-tests.sh, a list of the C tests, which are in
# C_TESTS; LIBRARY_TESTS and TRANSPORT_TESTS are the programs of the Rust tests, DIGITS and DIGITS_DATA the example and its data.
set -euo pipefail
. ./groups.sh

if group verbs "the guest's devices work, without gloo_rs"; then
  try 20 "RDMA WRITE with immediate, 1 byte" ./verbs_smoke local rxe0 rxe0 1 20
  try 20 "of several packets, on the other device" ./verbs_smoke local rxe1 rxe1 100000 10
  try 20 "by a user who may lock little memory" setpriv --reuid user --regid user --clear-groups bash -c 'ulimit -l 64 && ./verbs_smoke local rxe0 rxe0 4096 10'
  # The limit is that of root's, not the device's.
  try 20 "who may not lock more" setpriv --reuid user --regid user --clear-groups bash -c 'ulimit -l 64 && ! ./verbs_smoke local rxe0 rxe0 1000000 1'
  # With shells that are not interactive, what is left over is to be seen.
  try 20 "nothing is left of them" bash -c 'rdma resource show qp | grep -v "type GSI" | (! grep .)'
fi

if group c "C tests, over $TRANSPORT"; then
  . ./c-tests.sh
fi

# What follows is about ibverbs, whatever TRANSPORT is.
if group links "the requirements on links, over the device"; then
  try 60 "by one port" env GLOO_RS_TEST_IBVERBS=rxe0 "$LIBRARY_TESTS" transport::conformance:: --skip mixed --test-threads 2
  try 60 "by two ports" env GLOO_RS_TEST_IBVERBS=rxe0,rxe1 "$LIBRARY_TESTS" transport::conformance:: --skip mixed --test-threads 2
fi

if group rust "collectives with 2 to 6 ranks, large messages, what is left of contexts"; then
  rust() { # SECONDS NAME OF THE TEST
    try "$1" "$2" env GLOO_RS_TEST_IBVERBS=rxe0,rxe1 "$TRANSPORT_TESTS" --ignored --exact "$2"
  }
  rust 120 every_algorithm_of_every_collective
  rust 60 calls_of_several_threads
  rust 60 a_message_larger_than_the_devices_longest_is_written_from_memory_to_memory
  rust 60 a_collective_on_more_than_the_devices_longest_message
  rust 60 nothing_is_left_of_a_hundred_contexts
fi

if group failures "ranks that die or stop, too little memory, devices that are not there"; then
  for check in killed stopped locked names down absent; do try 60 "$check" ./checks.sh "$check"; done
fi

if group valgrind "errors in the use of memory, and leaks, by valgrind; since the machine is emulated, of two ranks that do little"; then
  memcheck() { # SECONDS NAME OPTION OF VALGRIND... COMMAND...
    try "$1" "$2" env GLOO_RS_TRANSPORT=ibverbs GLOO_RS_SHM=0 GLOO_RS_TUNING=default GLOO_RS_TESTS_SLOW=1 \
      valgrind --quiet --error-exitcode=99 --trace-children=yes "${@:3}"
  }
  leaks=(--leak-check=full --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect)
  memcheck 300 "devices and options" "${leaks[@]}" "$C_TESTS/ibverbs"
  memcheck 300 "messages" "${leaks[@]}" "$C_TESTS/unbound_buffer" order_and_slots
  # The tool ends without freeing what it has.
  memcheck 300 "collectives" --leak-check=no "$TOOL" bench allreduce -n 2 --sizes 4,64Ki --iterations 2 --warmup 1 --timeout 200
fi

if group example "the tool and the digits example"; then
  try 20 info ./checks.sh info
  try 120 digits ./checks.sh digits "$DIGITS" "$DIGITS_DATA"
fi

end_of_groups
