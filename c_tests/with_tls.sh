#!/bin/bash
# Runs a command with certificates of its own: GLOO_RS_TEST_TLS tells in which folder. With `all`, every device and TCP store uses TLS, and no rank
# shares memory.
# usage: c_tests/with_tls.sh files|all COMMAND...
set -euo pipefail
what=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
variables=$("$(dirname "$0")/../examples/tls/certificates.sh" "$folder")
if [ "$what" = all ]; then
  eval "$variables"
  export GLOO_RS_SHM=0
fi
status=0
GLOO_RS_TEST_TLS=$folder "$@" || status=$?
exit $status
