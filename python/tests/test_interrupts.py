"""Ctrl-C while the main thread waits in a call. No call here has a timeout: what is not ended by the signal does not end."""

import inspect
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

# A process that has not ended by then hangs.
LIMIT_S = 60


def await_sleep(pid):
    """Returns when the first thread of that process sleeps. In a program that has nothing else to do, that is in its call."""
    import pathlib
    import time

    deadline, looks = time.monotonic() + 60, 0
    while looks < 10:
        assert time.monotonic() < deadline, "it does not sleep"
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        time.sleep(0.02)


TWO_RANKS = """
    import math, signal, threading, numpy, gloo_rs
    # What a shell starts in the background ignores the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    def pair(name, **options):
        store, contexts = gloo_rs.Store.hash(name), [None, None]
        def make(rank):
            contexts[rank] = gloo_rs.Context(store, rank, 2, device=gloo_rs.Device(**options), timeout=math.inf)
        other = threading.Thread(target=make, args=(1,))
        other.start()
        make(0)
        other.join()
        return contexts
    def say(text):
        print(text, flush=True)
"""


@pytest.fixture
def program():
    """Starts a program, and returns its process once that has said "waits" and waits."""
    started = []

    def start(text):
        # From 3.12 on, CPython warns of a fork in a process with threads.
        text = inspect.getsource(await_sleep) + textwrap.dedent(TWO_RANKS) + textwrap.dedent(text)
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        line = process.stdout.readline()
        assert line == "waits\n", line + process.stdout.read()
        await_sleep(process.pid)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def interrupt(process):
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=LIMIT_S)[0]


WAITS = {
    "allreduce": ("context.allreduce(numpy.ones(4))", "4 float64 (32 bytes), tag 0: after "),
    "barrier": ("context.barrier()", "rank 0: barrier "),
    "persistent request": ("request = context.prepare('allreduce', numpy.ones(4)); request.start(); request.wait()", "4 float64 (32 bytes), tag 0: after "),
    "receive": ("buffer = context.unbound_buffer(bytearray(64)); buffer.recv(1, 7); buffer.wait_recv()", "wait for a receive of a buffer of 64 bytes"),
    "one-sided": ("buffer = context.pair(1).recv_buffer(7, bytearray(64)); buffer.wait_recv()", "from rank 1"),
    "split": ("context.split(0)", "cannot split a context: "),
}


@pytest.mark.parametrize("wait", ["wait_any", "wait_all"])
def test_ctrl_c_in_a_wait_for_several_closes_the_contexts_of_all(program, wait):
    process = program(f"""
        contexts = [pair("first"), pair("second", shared_memory=False)]
        requests = [context.start("allreduce", numpy.ones(4)) for context, _ in contexts]
        say("waits")
        try:
            gloo_rs.{wait}(requests)
        except KeyboardInterrupt as interruption:
            say(f"cause: {{type(interruption.__cause__).__name__}}: {{interruption.__cause__}}")
        for context, _ in contexts:
            say(f"broken: {{type(context.broken).__name__}}")
    """)
    output = interrupt(process)
    # The cause is the error of either request: one waits in shared memory, one for a message.
    awaited = r"it waited (for rank 1|to receive 0 of 32 bytes from rank 1 at )"
    assert re.search(r"cause: Closed: .*" + awaited, output), output
    assert output.count("broken: Closed") == 2


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared memory", "tcp"])
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_call_and_closes_its_context(program, wait, shared_memory):
    call, awaited = WAITS[wait]
    process = program(f"""
        context, other = pair("ctrl-c", shared_memory={shared_memory})
        say("waits")
        try:
            {call}
        except KeyboardInterrupt as interruption:
            say(f"cause: {{type(interruption.__cause__).__name__}}: {{interruption.__cause__}}")
        say(f"broken: {{type(context.broken).__name__}}")
        # A collective could still end with what rank 0 has sent.
        message = other.unbound_buffer(bytearray(1))
        try:
            message.recv(0, 99)
            message.wait_recv()
        except gloo_rs.Error as error:
            say(f"other: {{type(error).__name__}} {{error.rank}}")
    """)
    output = interrupt(process)
    assert "cause: Closed: " in output and awaited in output, output
    if "tag 0" in output:
        # A collective.
        assert "rank 1" in output.partition("has closed this context; it waited ")[2].splitlines()[0], output
    assert "broken: Closed" in output
    assert "other: ConnectionLost 0" in output
    assert process.returncode == 0


def test_ctrl_c_ends_only_the_call_that_waits(program):
    process = program("""
        first, first_other = pair("first")
        second, second_other = pair("second")
        say("waits")
        try:
            first.barrier()
        except KeyboardInterrupt:
            pass
        thread = threading.Thread(target=second_other.barrier)
        thread.start()
        second.barrier()
        thread.join()
        say(f"{first.broken is not None} {second.broken}")
    """)
    assert interrupt(process) == "True None\n"


def test_ctrl_c_between_calls_closes_nothing(program):
    process = program("""
        import time
        context, other = pair("between")
        def both():
            thread = threading.Thread(target=other.barrier)
            thread.start()
            context.barrier()
            thread.join()
        both()
        say("waits")
        try:
            time.sleep(3600)
        except KeyboardInterrupt:
            both()
        say(f"{context.broken}")
    """)
    assert interrupt(process) == "None\n"


def test_a_handler_of_the_program_runs_when_the_call_has_returned(program):
    process = program("""
        import sys
        context, other = pair("handler")
        signal.signal(signal.SIGINT, lambda *_: say("handled"))
        def rank_1():
            sys.stdin.readline()
            say("rank 1 comes")
            other.barrier()
        thread = threading.Thread(target=rank_1)
        thread.start()
        say("waits")
        context.barrier()
        thread.join()
        say(f"{context.broken}")
    """)
    process.send_signal(signal.SIGINT)
    # Time for the watcher, which should do nothing.
    time.sleep(0.2)
    output, _ = process.communicate("\n", timeout=LIMIT_S)
    assert output == "rank 1 comes\nhandled\nNone\n"


def test_a_handler_that_the_program_sets_back_raises_again(program):
    process = program("""
        context, other = pair("set back")
        thread = threading.Thread(target=other.barrier)
        thread.start()
        context.barrier()
        thread.join()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        say("waits")
        try:
            context.barrier()
        except KeyboardInterrupt as interruption:
            say(f"{type(interruption.__cause__).__name__}")
    """)
    assert interrupt(process) == "Closed\n"


STORES = {
    "get": ("store.get('key', timeout=math.inf)", "the store to have key"),
    "multi_get": ("store.multi_get(['key', 'other'], timeout=math.inf)", "the store to have key, other"),
    "wait": ("store.wait(['key'], timeout=math.inf)", "the store to have key"),
    "server": ("gloo_rs.Store.tcp('127.0.0.1', 9, timeout=math.inf)", "the store at 127.0.0.1, port 9"),
    "context": ("gloo_rs.Context(store, 0, 2, timeout=math.inf)", "the other ranks of 2 over the store, as rank 0"),
    "launch": ("gloo_rs.Context.from_env(timeout=math.inf)", "the job's store"),
}


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("wait", STORES)
def test_handlers_of_signals_run_while_a_store_is_waited_for(program, monkeypatch, wait, number):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    call, awaited = STORES[wait]
    process = program(f"""
        def stop(*_):
            raise SystemExit("told to")
        signal.signal(signal.SIGTERM, stop)
        store = gloo_rs.Store.hash("store")
        say("waits")
        try:
            {call}
        except (KeyboardInterrupt, SystemExit) as interruption:
            cause = interruption.__cause__
            say(f"{{type(interruption).__name__}} {{type(cause).__name__}}: {{cause}}")
    """)
    process.send_signal(getattr(signal, number))
    output, _ = process.communicate(timeout=LIMIT_S)
    raised = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "SystemExit"}[number]
    assert f"{raised} Aborted: " in output and output.endswith(f"waiting for {awaited}\n"), output
    assert process.returncode == 0


def test_ctrl_c_closes_a_context_that_connects(program):
    """The thread in which it connects ends, though nobody comes."""
    process = program("""
        import os, pathlib, time
        say("waits")
        try:
            gloo_rs.Context(gloo_rs.Store.hash("nobody"), 0, 2, timeout=math.inf)
        except KeyboardInterrupt:
            pass
        def names():
            return [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
        deadline = time.monotonic() + 30
        while "gloo_rs-wait\\n" in names() and time.monotonic() < deadline:
            time.sleep(0.02)
        say("gloo_rs-wait\\n" in names())
        os._exit(0)
    """)
    assert interrupt(process) == "False\n"


def test_ctrl_c_in_a_child_of_fork(program):
    """The child has a watcher of its own, and what interrupts it does not concern the parent."""
    process = program("""
        import os, sys
        context, other = pair("parent")
        def both(meanwhile=lambda: None):
            thread = threading.Thread(target=lambda: (meanwhile(), other.barrier()))
            thread.start()
            context.barrier()
            thread.join()
        both()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            own, _ = pair("child")
            os.write(writing, b"!")
            try:
                own.barrier()
            except KeyboardInterrupt as interruption:
                say(f"child: {type(interruption.__cause__).__name__}")
            os._exit(0)
        say("waits")
        def interrupt_child():
            os.read(reading, 1)
            await_sleep(child)
            sys.stdin.readline()
            os.kill(child, signal.SIGINT)
            os.waitpid(child, 0)
        both(interrupt_child)
        say(f"parent: {context.broken}")
    """)
    # Not before the parent is seen to wait: it ends soon after the child.
    output, _ = process.communicate("\n", timeout=LIMIT_S)
    assert output == "child: Closed\nparent: None\n"
