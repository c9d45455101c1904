"""What a buffer may be, and what is refused with which sentence."""

import array
import ctypes
import mmap

import ml_dtypes
import numpy as np
import pytest
from conftest import run_ranks

import gloo_rs


@pytest.fixture
def context():
    store = gloo_rs.Store.hash("test_memory")
    with gloo_rs.Context(store, 0, 1) as context:
        yield context


class Tensor:
    """As torch's tensors: DLPack, and no buffer protocol."""

    def __init__(self, values, device=(1, 0)):
        self.values, self.device = values, device

    def __dlpack__(self, **_):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.device


def test_the_buffer_protocol(context):
    mapped = mmap.mmap(-1, 4096)
    for buffer in [
        bytearray(8),
        memoryview(bytearray(8))[2:6],
        array.array("d", [1, 2]),
        mapped,
        (ctypes.c_int16 * 3)(),
        np.zeros((2, 3), np.int64),
        np.zeros((), np.float32),
        np.zeros(0),
    ]:
        context.allreduce(buffer)
        context.broadcast(buffer)
    # Nothing holds on to a buffer: what is still exported could not be resized or closed.
    grown = bytearray(8)
    context.allreduce(grown)
    grown.extend(b"12")
    mapped.close()


def test_types_by_format():
    def rank_main(context):
        for code in "bBhHiIlLqQfd":
            buffer = array.array(code, [1, 2, 3])
            context.allreduce(buffer)
            assert buffer.tolist() == [2, 4, 6], code
        as_floats = bytearray(np.array([0.5, 1.5], np.float32))
        context.allreduce(as_floats, dtype="float32")
        assert np.frombuffer(as_floats, np.float32).tolist() == [1.0, 3.0]
        halves = np.array([0.5, 1.5], ml_dtypes.bfloat16)
        context.allreduce(halves.view(np.uint16), dtype="bfloat16")
        assert halves.tolist() == [1.0, 3.0]
        # The other byte order is of no type of the library.
        swapped = np.ones(2, np.dtype(np.float32).newbyteorder())
        with pytest.raises(gloo_rs.InvalidArgument, match="no arithmetic"):
            context.allreduce(swapped)
        with pytest.raises(ValueError, match="float99.*bfloat16"):
            context.allreduce(swapped, dtype="float99")
        with pytest.raises(ValueError, match="3 bytes, which are no elements of 2"):
            context.allreduce(bytearray(3), dtype="int16")

    run_ranks(2, rank_main)


def test_dlpack():
    def rank_main(context):
        for dtype in [np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64, np.complex64, np.bool_]:
            values = np.ones((2, 3), dtype)
            out = np.zeros((2, 3), dtype)
            context.allreduce(Tensor(values), Tensor(out))
            assert (out == np.ones_like(out) + np.ones_like(out)).all()
        with pytest.raises(gloo_rs.InvalidArgument, match=r"strided; .*\.contiguous"):
            context.allreduce(Tensor(np.ones((4, 4))[:, 1]))
        with pytest.raises(gloo_rs.Unsupported, match="memory of a device .*type 2, number 3"):
            context.allreduce(Tensor(values, device=(2, 3)))

    run_ranks(2, rank_main)


def test_torch_tensors():
    torch = pytest.importorskip("torch")

    def rank_main(context):
        for dtype in [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]:
            values = torch.ones(5, dtype=dtype)
            context.allreduce(values)
            assert torch.equal(values, torch.ones(5, dtype=dtype) + torch.ones(5, dtype=dtype))

    run_ranks(2, rank_main)


REFUSED = [
    ("strided", lambda: np.ones((4, 4))[:, 1], ValueError, "allreduce: input is strided.*ascontiguousarray"),
    ("order of Fortran", lambda: np.asfortranarray(np.ones((2, 3))), ValueError, "allreduce: input is strided"),
    ("read-only", lambda: bytes(4), ValueError, "allreduce: input is read-only"),
    ("a list", lambda: [1.0], gloo_rs.InvalidArgument, "input is a list; here the call takes one buffer"),
    ("nothing", lambda: None, TypeError, "allreduce: out is missing"),
]


@pytest.mark.parametrize(("make", "error", "sentence"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(context, make, error, sentence):
    with pytest.raises(error, match=sentence):
        context.allreduce(make())


def test_lengths_and_types_must_fit():
    def rank_main(context):
        two, four, six = np.zeros(2), np.zeros(4), np.zeros(6)
        for call, sentence in [
            (lambda: context.allreduce(two, four), "allreduce: out has 4 elements, but the call needs 2"),
            (lambda: context.allreduce(two, np.zeros(2, np.int64)), "different types"),
            (lambda: context.allgather(two, six), "allgather: input has 2 elements, but the call needs 3"),
            (lambda: context.allgather(two, np.zeros(5)), "out has 5 elements, which are not 2 equal blocks"),
            (lambda: context.allgatherv(two, six, [2, 2]), "out has 6 elements, but the call needs 4"),
            (lambda: context.allgatherv(two, six, [6]), "recv_counts has 1 numbers, but there are 2 ranks"),
            (lambda: context.reduce_scatter(six, two), "out has 2 elements, but the call needs 3"),
            (lambda: context.reduce_scatter(six, two, counts=[1, 4]), "input has 6 elements, but the call needs 5"),
            (lambda: context.alltoall(np.zeros(3)), "input has 3 elements, which are not 2 equal blocks"),
            (lambda: context.alltoallv(two, four, [1, 2], [2, 2]), "input has 2 elements, but the call needs 3"),
            (lambda: context.pairwise_exchange(two, two.copy(), 0), "not 0 equal blocks"),
            (lambda: gloo_rs.reduce_local(two, four), "different numbers of elements"),
        ]:
            with pytest.raises(gloo_rs.InvalidArgument, match=sentence):
                call()
        # None of them was a call of the library, or broke the context.
        context.allreduce(two)

    run_ranks(2, rank_main)
