"""The tool `gloo-rs`: `python -m gloo_rs run -n 4 -- python program.py`."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    tool = str(pathlib.Path(__file__).parent / "bin" / "gloo-rs")
    os.execv(tool, ["gloo-rs", *sys.argv[1:]])


if __name__ == "__main__":
    main()
