"""The order of an epoch: pure functions of (seed, epoch, rank, world).

Nothing here keeps state, so a run can be continued at any step, and K processes that each take their part
of a global batch see together exactly the samples, in the same batches, that one process sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lpjepa.data.errors import DataError

_MASK = (1 << 64) - 1


def mixed_generator(*parts: int) -> torch.Generator:
    """A CPU generator whose seed mixes ``parts`` (splitmix64), so that neighbouring seeds are unrelated."""
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return torch.Generator().manual_seed(state)


def local_batch(batch_size: int, rank: int, world: int) -> int:
    """The part of a global batch that one of ``world`` processes takes."""
    if batch_size < 1 or world < 1 or not 0 <= rank < world:
        raise DataError(f"batch_size {batch_size}, rank {rank} of {world} processes make no sense.")
    if batch_size % world:
        raise DataError(f"batch_size {batch_size} must be a multiple of the number of processes, {world}.")
    return batch_size // world


def epoch_order(count: int, seed: int, epoch: int, batch_size: int, rank: int, world: int) -> Tensor:
    """Indices of one epoch for one process, int64 (steps, batch_size / world).

    One permutation of all ``count`` images, cut into global batches (the incomplete last one is dropped);
    process ``rank`` takes rows [rank · b, (rank + 1) · b) of each.
    """
    part = local_batch(batch_size, rank, world)
    steps = count // batch_size
    if steps == 0:
        raise DataError(
            f"batch_size {batch_size} is larger than the {count} images; lower it (train.batch_size)."
        )
    order = torch.randperm(count, generator=mixed_generator(seed, epoch))
    return order[: steps * batch_size].view(steps, world, part)[:, rank].contiguous()


def shard_order(
    shards: Sequence[tuple[int, int]],
    seed: int,
    epoch: int,
    batch_size: int,
    rank: int,
    world: int,
    buffer: int,
    lanes: int = 8,
) -> Tensor:
    """Indices of one epoch over shards that are best read from front to back, (steps, batch_size / world).

    The shards are permuted, laid end to end and cut into ``world · lanes`` equal lanes, each shuffled by a
    buffer of ``buffer`` samples. A process takes batch b from its lane b modulo ``lanes``, so that a worker
    process that takes every k-th batch stays with its own lanes (k a divisor of ``lanes``) and reads
    forwards. All ranks make the same number of steps in every epoch; the number of workers does not enter.

    Args:
        shards: (first index, last index + 1) of each shard.
        lanes: at most so many lanes per process; fewer where they would leave over 2 % more samples unused.
    """
    part = local_batch(batch_size, rank, world)
    total = sum(stop - start for start, stop in shards)
    steps = {n: n * (total // (world * n) // part) for n in range(1, lanes + 1)}
    lanes = max(n for n in steps if steps[n] >= 0.98 * max(steps.values()))
    rounds = steps[lanes] // lanes
    if rounds == 0:
        raise DataError(
            f"batch_size {batch_size} over {world} processes is too large for the {total} images; lower it."
        )
    permuted = torch.randperm(len(shards), generator=mixed_generator(seed, epoch, 1)).tolist()
    line = torch.cat([torch.arange(*shards[shard]) for shard in permuted])
    length = total // (world * lanes)
    batches = []
    for lane in range(rank * lanes, (rank + 1) * lanes):
        mixed = shuffle_buffer(length, buffer, mixed_generator(seed, epoch, 2, lane)) + lane * length
        batches.append(line[mixed[: rounds * part]].view(rounds, part))
    return torch.stack(batches, dim=1).view(rounds * lanes, part)


def shuffle_buffer(count: int, buffer: int, generator: torch.Generator) -> Tensor:
    """The order in which a shuffle buffer of ``buffer`` samples passes on ``count`` samples read in order.

    Sorting by arrival plus a uniform delay: no sample moves by more than ``buffer`` places.
    """
    delay = torch.rand(count, generator=generator, dtype=torch.float64) * max(buffer, 1)
    return (torch.arange(count, dtype=torch.float64) + delay).argsort()


def holdout(count: int, labels: Tensor | None, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """A seeded split into (train, validation) indices, both sorted; stratified where there are labels.

    Every class of two or more images gives at least one to validation and keeps at least one.
    """
    if not 0 < fraction < 1:
        raise DataError(f"val_fraction must lie between 0 and 1, not {fraction}.")
    generator = mixed_generator(seed, 3)
    groups = [torch.arange(count)]
    if labels is not None:
        groups = [(labels == label).nonzero().flatten() for label in labels.unique()]
    chosen = []
    for group in groups:
        wanted = min(max(round(fraction * len(group)), 1), len(group) - 1)
        chosen.append(group[torch.randperm(len(group), generator=generator)[:wanted]])
    is_val = torch.zeros(count, dtype=torch.bool)
    is_val[torch.cat(chosen)] = True
    return (~is_val).nonzero().flatten(), is_val.nonzero().flatten()
