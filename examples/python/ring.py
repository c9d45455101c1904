"""Adds arrays around a ring of ranks by messages, and compares with allreduce.

    gloo-rs run -n 3 -- python examples/python/ring.py
"""

import numpy as np

import gloo_rs


def add_around_the_ring(context: gloo_rs.Context, values: np.ndarray) -> np.ndarray:
    """The sum of the ranks' values: each rank passes on what it has received last, `size - 1` times."""
    left, right = (context.rank - 1) % context.size, (context.rank + 1) % context.size
    total, outgoing, incoming = values.copy(), values.copy(), np.empty_like(values)
    # A buffer for each direction; the memory stays where it is.
    send, recv = context.unbound_buffer(outgoing), context.unbound_buffer(incoming)
    slot = context.next_slot()
    for _ in range(context.size - 1):
        recv.recv(left, slot)
        send.send(right, slot)
        send.wait_send()
        recv.wait_recv()
        total += incoming
        outgoing[:] = incoming
    return total


def main() -> None:
    with gloo_rs.Context.from_env() as context:
        values = np.full(4, context.rank + 1.0)
        total = add_around_the_ring(context, values)
        context.allreduce(values)
        assert (total == values).all()
        print(f"rank {context.rank} of {context.size}: {total}")
        # A rank that ends closes its connections, for which others may still wait.
        context.barrier()


if __name__ == "__main__":
    main()
