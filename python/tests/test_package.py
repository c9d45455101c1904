"""What the installed package holds besides the module, and that its parts are one library in a process."""

import ctypes
import doctest
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

import gloo_rs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = next((gloo_rs.prefix() / "lib").glob("libgloo_rs.so.*"))


def test_the_installed_package_is_tested():
    assert ROOT not in gloo_rs.prefix().resolve().parents or "site-packages" in gloo_rs.prefix().parts


def test_one_library_in_the_process():
    mapped = set(re.findall(r"\S*/libgloo_rs\.so\S*", pathlib.Path("/proc/self/maps").read_text()))
    assert mapped == {str(LIBRARY.resolve())}


def test_code_in_c_shares_contexts():
    library = ctypes.CDLL(str(LIBRARY))
    with gloo_rs.Context(gloo_rs.Store.hash("shared with C"), 0, 1) as context:
        size = ctypes.c_int32()
        handle = ctypes.c_void_p(context.handle_address)
        assert library.gloo_rs_context_size(handle, ctypes.byref(size)) == 0
        assert size.value == 1
        assert library.gloo_rs_barrier(handle) == 0


@pytest.mark.parametrize("command", [[sys.executable, "-m", "gloo_rs"], [f"{sysconfig.get_path('scripts')}/gloo-rs"]])
def test_the_tool(command):
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert gloo_rs.__version__ in said


def test_a_project_in_c_finds_the_package(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("""
        cmake_minimum_required(VERSION 3.18)
        project(user C)
        find_package(gloo_rs REQUIRED COMPONENTS tcp)
        add_executable(user user.c)
        target_link_libraries(user PRIVATE gloo_rs::gloo_rs)
    """)
    (tmp_path / "user.c").write_text("""
        #include <gloo_rs.h>
        #include <stdio.h>
        int main(void) { return puts(gloo_rs_version()) < 0 || gloo_rs_version_number() != GLOO_RS_VERSION_NUMBER; }
    """)
    cmake = shutil.which("cmake")
    build = tmp_path / "build"
    for arguments in [["-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={gloo_rs.prefix()}"], ["--build", build]]:
        done = subprocess.run([cmake, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert subprocess.run([build / "user"], capture_output=True, text=True, check=True).stdout.strip() == gloo_rs.__version__


def test_stubs_agree_with_the_module(tmp_path):
    # What is for torch, `make test-torch` tests, where torch is.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-gloo_rs.torch.*]\nignore_errors = True\n[mypy-torch.*]\nignore_missing_imports = True\n"
    )
    (tmp_path / "allowed").write_text("gloo_rs\\.torch.*\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "gloo_rs", "--mypy-config-file", "mypy.ini", "--allowlist", "allowed"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["docs/python.md", "gloo_rs"])
def test_documentation(name):
    flags = doctest.ELLIPSIS
    if name == "gloo_rs":
        result = doctest.testmod(gloo_rs, optionflags=flags)
    else:
        result = doctest.testfile(str(ROOT / name), module_relative=False, optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("name", "result"), [("ring.py", "[6. 6. 6. 6.]"), ("overlap.py", str([3000.0 * n for n in range(1, 9)]))]
)
def test_the_examples(name, result):
    command = [sys.executable, "-m", "gloo_rs", "run", "-n", "3", "--", sys.executable, ROOT / "examples" / "python" / name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} of 3: {result}" for rank in range(3)]
