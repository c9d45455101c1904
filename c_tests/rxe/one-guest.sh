#!/bin/bash
# The tests that scripts/test-ibverbs.sh runs in one guest. The folder also has verbs_smoke, and c-tests.sh, a list of the C tests.
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

end_of_groups
