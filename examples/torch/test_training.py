#!/usr/bin/python3
"""DistributedDataParallel on handwritten digits ends at the same loss over gloo_rs as over torch's own backend gloo.
usage: test_training.py DIGITS.csv"""
import sys
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ranks import both, run

EPOCHS = 4
BATCH = 32


def read(path):
    rows = []
    with open(path) as file:
        for line in file:
            rows.append([float(field) for field in line.split(",")])
    rows = torch.tensor(rows)
    return rows[:, :-1] / 16, rows[:, -1].long()


def train(rank, size, group, pixels, labels):
    """The loss after EPOCHS epochs, each rank taking its part of every batch; and the weights."""
    torch.manual_seed(1 + rank)  # DistributedDataParallel takes those of rank 0
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.004)  # several buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        for begin in range(0, len(labels) - BATCH + 1, BATCH):
            part = slice(begin + rank * BATCH // size, begin + (rank + 1) * BATCH // size)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(pixels[part]), labels[part]).backward()
            optimizer.step()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model.module(pixels), labels).item()
    return loss, torch.cat([p.detach().view(-1) for p in model.parameters()])


def digits(rank, size, store, path):
    theirs, ours = both(rank, size, store)
    pixels, labels = read(path)
    theirs_loss, theirs_weights = train(rank, size, theirs, pixels, labels)
    ours_loss, ours_weights = train(rank, size, ours, pixels, labels)
    assert theirs_loss < 0.3, f"a loss of {theirs_loss}: nothing was learnt"
    all_weights = [torch.zeros_like(ours_weights) for _ in range(size)]
    dist.all_gather(all_weights, ours_weights, theirs)
    assert all(torch.equal(weights, ours_weights) for weights in all_weights), "the ranks have different weights"
    if size == 2:
        # Sums of two numbers have one result: all steps are the same, bit by bit.
        assert torch.equal(ours_weights, theirs_weights) and ours_loss == theirs_loss, f"{ours_loss} and {theirs_loss}"
    else:
        # Four numbers may be added in another order, and 220 steps take the rounding along: below one part in 10^5. A gradient that is
        # lost or counted twice changes the first digit.
        assert abs(ours_loss - theirs_loss) < 1e-4 * theirs_loss, f"{ours_loss} and {theirs_loss}"
    if rank == 0:
        print(f"{size} ranks: loss {ours_loss:.9f} over gloo_rs, {theirs_loss:.9f} over gloo")


class Training(unittest.TestCase):
    path = None

    def test_the_loss_is_that_over_gloo(self):
        for size in (2, 4):
            run(size, digits, self.path)


if __name__ == "__main__":
    Training.path = sys.argv.pop(1)
    unittest.main()
