"""Several threads that use one object at the same time. In a free-threaded CPython they do at any instruction."""

import subprocess
import sys
import sysconfig
import threading

import numpy as np
import pytest
from conftest import JOIN_S, TIMEOUT_S, run_ranks

import gloo_rs

STEPS = 300
N = 64


@pytest.fixture
def lonely():
    """A context of one rank, whose calls end at once."""
    with gloo_rs.Context(gloo_rs.Store.hash("threads"), 0, 1, timeout=TIMEOUT_S) as context:
        yield context


def run_together(*functions):
    """Calls each function on a thread of its own; all begin together."""
    begin, failures = threading.Barrier(len(functions)), []

    def thread_main(function):
        try:
            begin.wait(JOIN_S)
            function()
        except BaseException as failure:  # noqa: BLE001 - raised again below
            failures.append(failure)

    threads = [threading.Thread(target=thread_main, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has a global lock")
def test_the_global_lock_stays_off():
    program = "import gloo_rs, sys; print(sys._is_gil_enabled())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"


def test_threads_share_a_context(shared_memory):
    def rank_main(context):
        def calls(tag):
            for step in range(STEPS):
                values = np.full(N, step + context.rank, np.int64)
                if step % 3 == 0:
                    context.allreduce(values, tag=tag)
                elif step % 3 == 1:
                    context.start("allreduce", values, tag=tag).wait()
                else:
                    blocks = [np.empty(N, np.int64) for _ in range(context.size)]
                    context.allgather(values, blocks, tag=tag)
                    values = sum(blocks)
                assert (values == 2 * step + 1).all()

        def looks():
            for _ in range(STEPS):
                assert "rank" in repr(context)
                assert context.counters()["calls"] is not None
                assert f'rank="{context.rank}"' in gloo_rs.prometheus_text({"shared": context})

        run_together(*(lambda tag=tag: calls(tag) for tag in range(3)), looks)

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_a_request_is_started_while_its_entry_is_taken(lonely):
    queue, values = gloo_rs.Queue(), np.ones(N)
    request = lonely.prepare("allreduce", values)
    queue.attach(request, values)

    def starts():
        for _ in range(STEPS):
            request.start()
            # Until another thread has its entry from the library.
            while request.is_active:
                pass

    def takes():
        for _ in range(STEPS):
            value, error = queue.wait(timeout=TIMEOUT_S)
            assert (value is values, error) == (True, None)

    run_together(starts, takes)
    assert list(queue) == []


def test_a_request_is_started_while_its_callback_is_called(lonely):
    entries, done = [], threading.Event()

    def callback(entry):
        entries.append(entry)
        if len(entries) == STEPS:
            done.set()

    request = lonely.prepare("allreduce", np.ones(N))
    request.set_callback(callback)
    for _ in range(STEPS):
        request.start()
        while request.is_active:
            pass
    assert done.wait(TIMEOUT_S), f"{len(entries)} of {STEPS} ends were told"
    assert all((entry.value is request, entry.error) == (True, None) for entry in entries)


def test_threads_start_in_one_group(lonely):
    queue, added, begun = gloo_rs.Queue(), [], threading.Event()
    requests = [lonely.start("allreduce", np.ones(N), tag=tag) for tag in range(2)]
    for request in requests:
        request.wait()
        queue.attach(request)

    def starts(group, request):
        begun.set()
        try:
            request.start(group=group)
            added.append(request)
        except gloo_rs.InvalidOperation as error:
            assert "the group has ended" in str(error)

    def ends(group):
        assert begun.wait(JOIN_S)
        group.end()

    for _ in range(STEPS // 6):
        group = lonely.group()
        run_together(*(lambda request=request: starts(group, request) for request in requests), lambda: ends(group))
        ended = [queue.wait(timeout=TIMEOUT_S)[0] for _ in added]
        assert {id(request) for request in ended} == {id(request) for request in added}
        added.clear()
        begun.clear()


def test_no_call_has_the_buffers_of_another_membership():
    """Two processes, played by threads: one is left out, and comes back, while both make calls."""
    store, rounds = gloo_rs.Store.hash("threads and memberships"), 15
    contexts = [gloo_rs.Context.without_members(timeout=TIMEOUT_S) for _ in range(2)]
    first, second = contexts
    meet, is_over = threading.Barrier(2), threading.Event()

    def calls(context):
        while not is_over.is_set():
            size = context.size
            if size < 1:
                continue
            room = np.full(3 * N, 7)
            try:
                context.allgather(np.zeros(N, np.int64), room[: size * N])
            except (gloo_rs.InvalidOperation, gloo_rs.InvalidArgument, gloo_rs.Aborted, gloo_rs.ConnectionLost):
                pass
            assert (room[size * N :] == 7).all(), "the call has written behind its buffer"

    def reconfigures(own):
        try:
            for id in range(rounds):
                handles = []
                for process, context in enumerate(contexts):
                    if own == process:
                        store.set(f"{id}/{process}", context.handle.encode())
                    handles.append(store.get(f"{id}/{process}", timeout=TIMEOUT_S).decode())
                contexts[own].reconfigure(store, 2 * id, handles)
                meet.wait(JOIN_S)
                if own == 0:
                    first.reconfigure(store, 2 * id + 1, [first.handle])
                meet.wait(JOIN_S)
        finally:
            is_over.set()

    run_together(*(lambda own=own: reconfigures(own) for own in range(2)), *(lambda context=context: calls(context) for context in contexts))
    for context in contexts:
        context.close()
