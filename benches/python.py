#!/usr/bin/env python3
"""What a call takes from Python, beside the same call in C: an allreduce of one float32 by one rank, in place, in nanoseconds. Also how soon
Ctrl-C ends a call that waits, in milliseconds.

usage: benches/python.py    with an interpreter that has the package gloo-rs and numpy, and a C compiler
"""

import signal
import statistics
import subprocess
import sys
import tempfile
import time
import timeit

import gloo_rs
import numpy

CALLS = 100_000
# The shortest of so many rounds counts: what others do on this machine only adds.
ROUNDS = 15
INTERRUPTS = 20

C = """
#include <gloo_rs.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * time.tv_sec + time.tv_nsec;
}

int main(void) {
  gloo_rs_store_t *store;
  gloo_rs_device_t *device;
  gloo_rs_context_t *context;
  float value = 1;
  void *output = &value;
  double best = 1e18;
  if (gloo_rs_store_create_in_process("bench", &store) || gloo_rs_device_create(NULL, &device) ||
      gloo_rs_context_create(device, 0, 1, NULL, &context) || gloo_rs_context_connect(context, store))
    return 1;
  for (int round = 0; round < ROUNDS; round++) {
    double begin = now();
    for (int i = 0; i < CALLS; i++) {
      gloo_rs_collective_options_t options;
      gloo_rs_collective_options_init(&options, sizeof options);
      options.outputs = &output;
      options.num_outputs = 1;
      options.count = 1;
      options.data_type = GLOO_RS_FLOAT32;
      options.memory = GLOO_RS_MEMORY_HOST;
      if (gloo_rs_collective(context, GLOO_RS_ALLREDUCE, &options)) return 1;
    }
    double each = (now() - begin) / CALLS;
    if (each < best) best = each;
  }
  printf("%f\\n", best);
  return 0;
}
"""

INTERRUPTED = """
import math, signal, threading, time, gloo_rs
signal.signal(signal.SIGINT, signal.default_int_handler)
store = gloo_rs.Store.hash("interrupt")
other = threading.Thread(target=lambda: globals().update(rank_1=gloo_rs.Context(store, 1, 2)))
other.start()
context = gloo_rs.Context(store, 0, 2, timeout=math.inf)
other.join()
print(flush=True)
try:
    context.barrier()
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
"""


def in_c():
    library = gloo_rs.prefix()
    soname = next((library / "lib").glob("libgloo_rs.so.*"))
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/allreduce"
        command = ["cc", "-O2", f"-DCALLS={CALLS}", f"-DROUNDS={ROUNDS}", "-x", "c", "-", f"-I{library}/include", "-o", program]
        subprocess.run([*command, "-x", "none", soname, f"-Wl,-rpath,{library}/lib"], input=C, text=True, check=True)
        return float(subprocess.run([program], capture_output=True, text=True, check=True).stdout)


def in_python(statement, **names):
    rounds = timeit.repeat(statement, number=CALLS, repeat=ROUNDS, globals=names)
    return min(rounds) / CALLS * 1e9


def interrupt():
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(0.1)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        return 1e3 * (float(process.stdout.readline()) - begin)


def main():
    context = gloo_rs.Context(gloo_rs.Store.hash("bench"), 0, 1)
    array, memory = numpy.ones(1, numpy.float32), bytearray(4)
    request = context.prepare("allreduce", array)
    addresses = in_c()
    for name, time_ns in {
        "C, on addresses": addresses,
        "numpy": in_python("allreduce(array)", allreduce=context.allreduce, array=array),
        "bytearray": in_python("allreduce(memory)", allreduce=context.allreduce, memory=memory),
        "persistent request": in_python("request.start(); request.wait()", request=request),
        "an attribute": in_python("context.rank", context=context),
    }.items():
        print(f"{name:20} {time_ns:7.0f} ns")
    times = [interrupt() for _ in range(INTERRUPTS)]
    print(f"Ctrl-C: median {statistics.median(times):.2f} ms, longest of {INTERRUPTS} {max(times):.2f} ms")


if __name__ == "__main__":
    main()
