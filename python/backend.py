"""PEP 517's backend of this project: CMake builds and installs the library and the tool, their files go into the package, and
maturin builds the module and packs the wheel.

GLOO_RS_PREFIX names a prefix where gloo_rs is installed already. GLOO_RS_WHEEL_FEATURES are cargo features for what is
built otherwise, separated by semicolons: redis;tls by default, which need a C compiler only.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess

import maturin

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "gloo_rs"

prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
build_sdist = maturin.build_sdist


def get_requires_for_build_wheel(config_settings=None):
    # PyPI has them for machines that lack them.
    needed = [] if os.environ.get("GLOO_RS_PREFIX") else ["cmake", "ninja"]
    return [tool for tool in needed if shutil.which(tool) is None]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    prefix = os.environ.get("GLOO_RS_PREFIX")
    prefix = pathlib.Path(prefix).resolve() if prefix else installed()
    os.environ["GLOO_RS_PREFIX"] = str(prefix)
    copy_files(prefix)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def installed() -> pathlib.Path:
    """A prefix into which this has built and installed library and tool."""
    build = ROOT / "build" / "pip"
    features = os.environ.get("GLOO_RS_WHEEL_FEATURES", "redis;tls")
    cmake = ["cmake", "-S", ROOT, "-B", build / "cmake", "-G", "Ninja", f"-DGLOO_RS_CARGO_FEATURES={features}"]
    subprocess.run([*cmake, "-DCMAKE_INSTALL_LIBDIR=lib"], check=True)
    subprocess.run(["cmake", "--build", build / "cmake"], check=True)
    subprocess.run(["cmake", "--install", build / "cmake", "--prefix", build / "prefix"], check=True)
    return build / "prefix"


def copy_files(prefix: pathlib.Path) -> None:
    """Puts into the package what the wheel has besides the module: the shared library under its soname alone, as wheels have no
    links, the headers, the CMake package and the tool."""
    for name in ["bin", "include", "lib"]:
        shutil.rmtree(PACKAGE / name, ignore_errors=True)
    library = next(path for path in (prefix / "lib").glob("libgloo_rs.so.*") if path.is_symlink())
    for source, target in [(library, f"lib/{library.name}"), (prefix / "bin/gloo-rs", "bin/gloo-rs")]:
        (PACKAGE / target).parent.mkdir()
        subprocess.run([os.environ.get("STRIP", "strip"), "--strip-unneeded", "-o", PACKAGE / target, source], check=True)
    shutil.copytree(prefix / "include", PACKAGE / "include")
    # Headers and CMake package are taken of Gloo's API: its libraries are links.
    for folder in ["lib/cmake", "lib/gloo_rs/gloo/include", "lib/gloo_rs/gloo/lib/cmake"]:
        shutil.copytree(prefix / folder, PACKAGE / folder)
    # Twice in a prefix, and once here.
    header = PACKAGE / "lib/gloo_rs/gloo/include/gloo_rs.h"
    header.write_text('#include "../../../../include/gloo_rs.h"\n')
    linked = (prefix / "share/doc/gloo_rs/THIRD-PARTY-LICENSES").read_text()
    (PACKAGE / "THIRD-PARTY-LICENSES").write_text(linked + licences_of_the_module())


def licences_of_the_module() -> str:
    """The licences of the crates that the module contains code of."""

    def cargo(*arguments):
        return subprocess.run(["cargo", *arguments, "--locked"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    tree = cargo("tree", "-p", "gloo-rs-python", "-e", "normal,no-proc-macro", "--prefix", "none", "-f", "{p}")
    crates = {line.removesuffix(" (*)") for line in tree.splitlines() if "gloo-rs-python" not in line}
    packages = {
        f"{package['name']} v{package['version']}": package
        for package in json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    }
    texts = []
    for crate in sorted(crates):
        folder = pathlib.Path(packages[crate]["manifest_path"]).parent
        text = "\n".join(file.read_text() for file in sorted(folder.glob("LICENSE*")))
        texts.append(f"\n{'-' * 100}\n{crate}, in Python's module: {packages[crate]['license']}\n\n{text}")
    return "".join(texts)
