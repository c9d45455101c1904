"""Stores, and contexts over each of them."""

import threading
import weakref

import numpy as np
import pytest

import gloo_rs
from gloo_rs import Store


def exercise(store):
    store.set("key", b"value")
    assert store.get("key") == b"value"
    store.append("key", bytearray(b"!"))
    assert store.multi_get(["key", "key"]) == [b"value!"] * 2
    assert (store.add("sum", 5), store.add("sum", -2)) == (5, 3)
    store.wait(["key", "sum"], timeout=5)
    assert store.delete("key")
    assert not store.delete("key")
    with pytest.raises(gloo_rs.Timeout, match="key"):
        store.get("key", timeout=0)
    with pytest.raises(gloo_rs.Timeout, match="missing"):
        store.wait(["sum", "missing"], timeout=0.05)
    below = store.prefix("below")
    below.set("key", b"")
    assert store.get("below/key") == b""
    with pytest.raises(ValueError, match="NUL"):
        store.set("a\0b", b"")


def test_hash():
    exercise(Store.hash("test_hash"))


def test_file(tmp_path):
    exercise(Store.file(tmp_path / "store"))
    exercise(Store.url(f"file://{tmp_path}/other", 0))
    with pytest.raises(ValueError, match="not UTF-8"):
        Store.file(tmp_path / "\udcff")


def test_tcp():
    server = Store.tcp("127.0.0.1", 0, serve=True, token="secret")
    client = Store.tcp("127.0.0.1", server.port, token="secret", timeout=10)
    exercise(client)
    with pytest.raises(gloo_rs.Mismatch):
        Store.tcp("127.0.0.1", server.port, token="other", timeout=10)
    with pytest.raises(gloo_rs.InvalidOperation):
        Store.hash("test_tcp").port  # noqa: B018


def test_no_server():
    with pytest.raises(gloo_rs.Error, match="127.0.0.1"):
        Store.redis("127.0.0.1", 1, timeout=0)
    with pytest.raises(gloo_rs.Timeout):
        Store.tcp("127.0.0.1", 1, timeout=0.05)


def test_a_context_over_a_file(tmp_path):
    sums = []

    def rank_main(rank):
        with gloo_rs.Context(Store.file(tmp_path), rank, 2, timeout=20, connect="full", check_calls=True) as context:
            values = np.array([rank + 1])
            context.allreduce(values)
            sums.append(values[0])
            assert context.shares_host(1 - rank)
            assert context.timeout == 20
            context.timeout = 5.5
            assert context.timeout == 5.5
            assert "rank" in repr(context)
            context.barrier()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [3, 3]


def test_a_missing_rank_is_named():
    with pytest.raises(gloo_rs.Timeout, match="1 of 2 ranks have not arrived: 1") as caught:
        gloo_rs.Context(Store.hash("missing"), 0, 2, timeout=0.1)
    assert caught.value.operation == "connect"


def test_options_are_refused_by_name():
    store = Store.hash("options")
    with pytest.raises(TypeError, match="Context has no argument colour; it has token"):
        gloo_rs.Context(store, 0, 1, colour=3)
    with pytest.raises(TypeError, match="Device has no argument prot; it has interface_name"):
        gloo_rs.Device(prot=1)
    with pytest.raises(ValueError, match="lazy or full"):
        gloo_rs.Context(store, 0, 1, connect="soon")
    with pytest.raises(gloo_rs.InvalidArgument):
        gloo_rs.Device(transport="pigeon")
    device = gloo_rs.Device(hostname="127.0.0.1", port_range="20000-29999", streams=2, wait="sleep")
    assert device.address.startswith("127.0.0.1:2")
    assert device.interface == "lo"


class OfPython:
    """A store in a dictionary."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, timeout):
        self.wait([key], timeout)
        return self.values[key]

    def wait(self, keys, timeout):
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys), min(timeout, threading.TIMEOUT_MAX)):
                raise TimeoutError

    def add(self, key, amount):
        with self.changed:
            self.values[key] = b"%d" % (int(self.values.get(key, b"0")) + amount)
            return int(self.values[key])

    def delete(self, key):
        return self.values.pop(key, None) is not None


def test_a_store_in_python():
    made = OfPython()
    store = Store.custom(made)
    store.set("key", b"")
    assert store.get("key") == b""
    store.set("key", bytearray(b"value"))
    assert store.multi_get(["key"]) == [b"value"]
    assert (store.add("sum", 5), store.add("sum", -2)) == (5, 3)
    assert store.delete("key")
    assert not store.delete("key")
    with pytest.raises(gloo_rs.Timeout, match="missing"):
        store.wait(["sum", "missing"], timeout=0.05)
    with pytest.raises(gloo_rs.Timeout, match="key"):
        store.get("key", timeout=0)
    assert store.prefix("below").add("key", 1) == 1
    assert made.values["below/key"] == b"1"

    def rank_main(rank):
        with gloo_rs.Context(store, rank, 2, timeout=20) as context:
            value = bytearray([rank + 1])
            context.allreduce(value)
            sums[rank] = value[0]
            context.barrier()

    sums = [None, None]
    ranks = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sums == [3, 3]


def test_a_store_in_python_that_raises(monkeypatch):
    raised = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(unraisable.exc_value))
    made = OfPython()
    made.add = lambda key, amount: 1 // 0
    with pytest.raises(gloo_rs.CallbackFailed):
        Store.custom(made).add("key", 1)
    assert [type(error) for error in raised] == [ZeroDivisionError]


def test_a_store_in_python_is_freed():
    made = OfPython()
    gone = weakref.ref(made)
    store = Store.custom(made)
    del made
    assert gone() is not None
    del store
    assert gone() is None
