"""Jobs of processes: by the tool, with forks, signals and ranks that die."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

LIMIT_S = 60


def run_job(program, size, tmp_path):
    """Runs `program` as `size` ranks by `python -m gloo_rs run`. Returns the sorted lines of output, and what it wrote to stderr."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "gloo_rs", "run", "-n", str(size), "--", sys.executable, file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


def test_a_job_of_the_tool(tmp_path):
    program = """
        import gloo_rs, numpy
        with gloo_rs.Context.from_env(timeout=30) as context:
            values = numpy.full(3, context.rank + 1.0)
            context.allreduce(values)
            print(context.rank, context.size, values.tolist(), *gloo_rs.local_rank_from_env())
    """
    lines, _ = run_job(program, 3, tmp_path)
    assert lines == [f"[{rank}] {rank} 3 [6.0, 6.0, 6.0] {rank} 3" for rank in range(3)]


def test_a_rank_that_dies_is_named(tmp_path):
    # Without the tool, which would end the other rank.
    program = """
        import gloo_rs, numpy, os, signal
        context = gloo_rs.Context.from_env(timeout=30)
        context.barrier()
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            context.allreduce(numpy.ones(4))
        except gloo_rs.ConnectionLost as error:
            print("lost", error.rank, error.operation, isinstance(error, ConnectionError))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "WORLD_SIZE": "2", "GLOO_RS_STORE": f"file://{tmp_path}/store"}
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, "RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert outputs == ["lost 1 allreduce True\n", ""]


def test_fork(tmp_path):
    """A child cannot use the parent's objects, may drop them, and can have a job of its own."""
    program = """
        import gc, gloo_rs, numpy, os
        context = gloo_rs.Context.from_env(timeout=30)
        values = numpy.ones(2)
        request = context.prepare("allreduce", values, tag=1)
        request.start()
        child = os.fork()
        if child == 0:
            for call in [context.barrier, request.wait]:
                try:
                    call()
                except gloo_rs.InvalidOperation as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
            del request, context, call
            gc.collect()
            with gloo_rs.Context(gloo_rs.Store.hash("child"), 0, 1) as own:
                own.allreduce(values)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        request.wait()
        context.barrier()
        print(values.tolist())
    """
    lines, _ = run_job(program, 2, tmp_path)
    assert lines == ["[0] [2.0, 2.0]", "[1] [2.0, 2.0]"]


def test_exit_without_closing(tmp_path):
    """At exit, objects may be left to the interpreter, in any order and state."""
    program = """
        import gloo_rs, numpy, threading
        context = gloo_rs.Context.from_env(timeout=30)
        buffer = context.unbound_buffer(numpy.zeros(8))
        buffer.recv(0, 3)
        request = context.prepare("barrier")
        memory = context.alloc(1 << 16)
        view = memoryview(memory)
        context.barrier()
        print("end")
    """
    lines, said = run_job(program, 2, tmp_path)
    assert lines == ["[0] end", "[1] end"]
    assert not said


def test_no_subinterpreters():
    """The module refuses them. A process of its own tries, since it may have no other use of the module before."""
    program = """
        import sys, _testcapi
        code = "import sys; sys.path[:] = " + repr(sys.path) + "\\nimport gloo_rs"
        sys.exit(0 if _testcapi.run_in_subinterp(code) else 1)
    """
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "ImportError: gloo_rs does not serve subinterpreters" in done.stderr


def test_environment(monkeypatch):
    import gloo_rs

    for name in list(os.environ):
        if name in {"RANK", "WORLD_SIZE", "GLOO_RS_STORE", "MASTER_ADDR"}:
            monkeypatch.delenv(name)
    with pytest.raises(gloo_rs.Error, match="RANK"):
        gloo_rs.Context.from_env(timeout=1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with gloo_rs.Context.from_env() as context:
        assert (context.rank, context.size) == (0, 1)
