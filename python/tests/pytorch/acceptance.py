"""Runs torch's own tests of torch.distributed over a backend: those of torch.testing._internal.distributed.distributed_test.

    acceptance.py BACKEND RANKS [--only NAME...]

BACKEND is gloo_rs, or gloo, of which gloo_rs then takes the place. Fails unless as many tests pass as PASSED says, and none fails but those of
FAILED.
"""

import argparse
import os
import sys
import tempfile
import unittest


def prepare(backend, ranks):
    folder = tempfile.mkdtemp(prefix="gloo_rs-torch-")
    for name in ("barrier", "test_dir", "init_dir"):
        os.mkdir(os.path.join(folder, name))
    os.environ.update({"BACKEND": backend, "WORLD_SIZE": str(ranks), "TEMP_DIR": folder, "GLOO_SOCKET_IFNAME": "lo"})
    if backend == "gloo":
        os.environ["GLOO_RS_TORCH"] = "replace"
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# With torch 2.15. The others of the 285 are for GPUs or for other backends.
PASSED = {"gloo_rs": 65, "gloo": 89}
# It wants the name gloo from C++, where the logger of DistributedDataParallel takes what has this name for the class of torch's own backend.
FAILED = {"gloo_rs": set(), "gloo": {"test_ddp_logging_data_cpu"}}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("backend")
parser.add_argument("ranks", type=int)
parser.add_argument("--only", nargs="*")
arguments = parser.parse_args()
# torch's module reads the environment when it is imported.
prepare(arguments.backend, arguments.ranks)

import torch  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class Acceptance(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # Not by spawn, so that torch is loaded once.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Passed(unittest.TextTestResult):
    """Also counts what passes."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main():
    names = unittest.TestLoader().getTestCaseNames(Acceptance)
    if arguments.only:
        names = [name for name in names if any(part in name for part in arguments.only)]
    result = unittest.TextTestRunner(verbosity=2, resultclass=Passed).run(unittest.TestSuite(map(Acceptance, names)))
    failed = {test.id().rpartition(".")[2] for test, _ in result.failures + result.errors}
    expected, passed = FAILED[arguments.backend], PASSED[arguments.backend]
    print(f"{result.passed} passed as {arguments.backend} with {arguments.ranks} ranks; failed: {', '.join(sorted(failed)) or 'none'}")
    if not arguments.only and (failed != expected or result.passed != passed):
        sys.exit(f"acceptance: expected that {passed} pass, and that these fail: {', '.join(sorted(expected)) or 'none'}")


if __name__ == "__main__":
    main()
