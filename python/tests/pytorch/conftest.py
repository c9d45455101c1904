"""The backend for torch is tested where torch 2.14 or later is, by `make test-torch`."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    print("NOT TESTED: gloo_rs.torch. There is no torch here; make test-torch installs one.")
    collect_ignore_glob = ["test_*.py"]
