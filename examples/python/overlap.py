"""Computes while arrays are reduced, and awaits them in asyncio.

    gloo-rs run -n 3 -- python examples/python/overlap.py
"""

import asyncio

import numpy as np

import gloo_rs

ARRAYS = 8


async def reduced(context: gloo_rs.Context, values: np.ndarray, tag: int) -> float:
    """The sum of the ranks' values, in place, and then of all of them."""
    await context.start("allreduce", values, tag=tag)
    return float(values.sum())


async def steps(context: gloo_rs.Context) -> list[float]:
    sums = []
    for n in range(ARRAYS):
        # The next array is computed while the earlier ones are on their way.
        values = np.full(1000, float(n + context.rank))
        sums.append(asyncio.create_task(reduced(context, values, tag=n)))
        await asyncio.sleep(0)
    return await asyncio.gather(*sums)


def main() -> None:
    with gloo_rs.Context.from_env() as context:
        sums = asyncio.run(steps(context))
        ranks = context.size * (context.size - 1) / 2
        assert sums == [1000 * (n * context.size + ranks) for n in range(ARRAYS)]
        print(f"rank {context.rank} of {context.size}: {sums}")
        # A rank that ends closes its connections, for which others may still wait.
        context.barrier()


if __name__ == "__main__":
    main()
