#!/bin/bash
# Runs a command beside a redis-server of its own, which wants a password: GLOO_RS_TEST_REDIS_HOST tells where, port 6379.
# usage: c_tests/with_redis.sh COMMAND...
set -euo pipefail
directory=$(mktemp -d)
server=
end() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
  rm -rf "$directory"
}
trap end EXIT

# An address of the loopback network that nobody else uses, so that the port is free. If it is not, another one.
for try in 1 2 3 4 5; do
  host=127.$((RANDOM % 100 + 130)).$((RANDOM % 250)).$((RANDOM % 250 + 1))
  : >"$directory/log"
  redis-server --bind "$host" --port 6379 --requirepass secret --dir "$directory" --logfile "$directory/log" \
    --save "" --appendonly no --daemonize no </dev/null >/dev/null &
  server=$!
  for ((i = 0; i < 1000; i++)); do
    if grep -q "Ready to accept connections" "$directory/log"; then break 2; fi
    if ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.02
  done
  kill "$server" 2>/dev/null && wait "$server" || true
  server=
done
if [ -z "$server" ]; then
  echo "with_redis: redis-server does not start:" >&2
  cat "$directory/log" >&2
  exit 1
fi
status=0
GLOO_RS_TEST_REDIS_HOST=$host "$@" || status=$?
exit $status
