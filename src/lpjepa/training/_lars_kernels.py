"""LARS for all parameters of a group in three kernels, whatever their number.

Most parameters are small, so that a step made of one operation after another spends its time on launching
them. Here all parameters are cut into chunks, a table holds where each one's weights, gradient and velocity
are, and one program moves one chunk. The first kernel sums the squares of weights and gradients chunk by
chunk, the second adds the sums up by parameter, always in the same order, and the third moves. Between the
second and the third, the norms can serve to clip the gradients and to find those that are not finite.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpjepa.training.deferral import deferred

CHUNK = 4096  # of most weights of convolutions a divisor
_PIECE = 1024  # of a chunk that is not whole
_COLUMNS = 7  # of the table: weight, gradient and velocity addresses, length, scaled, first chunk, chunks


@triton.jit
def _addresses(row_ptr):
    """The float32 pointers of a row of the table; `applies` has checked that they are aligned."""
    w_ptr = tl.load(row_ptr).to(tl.pointer_type(tl.float32))
    g_ptr = tl.load(row_ptr + 1).to(tl.pointer_type(tl.float32))
    v_ptr = tl.load(row_ptr + 2).to(tl.pointer_type(tl.float32))
    return tl.multiple_of(w_ptr, 16), tl.multiple_of(g_ptr, 16), tl.multiple_of(v_ptr, 16)


@triton.jit
def _squares(w_ptr, g_ptr, i, w_length, g_length, WHOLE: tl.constexpr):
    """Sums of squares of elements i, as far as they are there. WHOLE: all are, but weights if not asked for.

    Without a mask that may differ from one element to the next, four are read at a time.
    """
    if WHOLE:
        g = tl.load(g_ptr + i)
        w = tl.load(w_ptr + i, mask=w_length > 0, other=0.0)
    else:
        g = tl.load(g_ptr + i, mask=i < g_length, other=0.0)
        w = tl.load(w_ptr + i, mask=i < w_length, other=0.0)
    return tl.sum(w * w), tl.sum(g * g)


@triton.jit
def _squares_kernel(
    table_ptr, chunk_ptr, sums_ptr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, PIECE: tl.constexpr
):
    """Sums of squares of a chunk's weights (zero where they are not asked for) and gradients."""
    # From the end: gradients that were written last are still in the cache.
    c = tl.num_programs(0) - 1 - tl.program_id(0)
    row_ptr = table_ptr + tl.load(chunk_ptr + 2 * c) * COLUMNS
    start = tl.multiple_of(tl.load(chunk_ptr + 2 * c + 1), CHUNK)
    w_ptr, g_ptr, _v_ptr = _addresses(row_ptr)
    length = tl.load(row_ptr + 3)
    w_length = tl.where(tl.load(row_ptr + 4) != 0, length, 0)
    if start + CHUNK <= length:
        w_sum, g_sum = _squares(w_ptr, g_ptr, start + tl.arange(0, CHUNK), w_length, length, True)
        tl.store(sums_ptr + 2 * c, w_sum)
        tl.store(sums_ptr + 2 * c + 1, g_sum)
    else:
        w_squares = 0.0
        g_squares = 0.0
        for at in range(start, length, PIECE):
            w_more, g_more = _squares(w_ptr, g_ptr, at + tl.arange(0, PIECE), w_length, length, False)
            w_squares += w_more
            g_squares += g_more
        tl.store(sums_ptr + 2 * c, w_squares)
        tl.store(sums_ptr + 2 * c + 1, g_squares)


@triton.jit
def _norms_kernel(table_ptr, sums_ptr, w_norm_ptr, g_norm_ptr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """‖w‖ and ‖g‖ of one parameter."""
    r = tl.program_id(0)
    first = tl.load(table_ptr + r * COLUMNS + 5)
    chunks = tl.load(table_ptr + r * COLUMNS + 6)
    w_squares = 0.0
    g_squares = 0.0
    for at in range(0, chunks, BLOCK):
        k = at + tl.arange(0, BLOCK)
        w_squares += tl.sum(tl.load(sums_ptr + 2 * (first + k), mask=k < chunks, other=0.0))
        g_squares += tl.sum(tl.load(sums_ptr + 2 * (first + k) + 1, mask=k < chunks, other=0.0))
    tl.store(w_norm_ptr + r, tl.sqrt(w_squares))
    tl.store(g_norm_ptr + r, tl.sqrt(g_squares))


@triton.jit
def _move(w_ptr, g_ptr, v_ptr, i, length, rate, ratio, momentum, factor, decay, WHOLE: tl.constexpr):
    """Moves elements i, as far as they are there. WHOLE: all are, and need no mask (see `_squares`)."""
    if WHOLE:
        inside = None
    else:
        inside = i < length
    # Weights are read again soon, when they are cast for the next step; the others are not.
    w = tl.load(w_ptr + i, mask=inside)
    g = tl.load(g_ptr + i, mask=inside, eviction_policy="evict_first")
    v = tl.load(v_ptr + i, mask=inside, eviction_policy="evict_first")
    v = momentum * v + ratio * (factor * g + decay * w)
    tl.store(v_ptr + i, v, mask=inside, eviction_policy="evict_first")
    tl.store(w_ptr + i, w - rate * v, mask=inside)


@triton.jit
def _move_kernel(
    table_ptr,
    chunk_ptr,
    w_norm_ptr,
    g_norm_ptr,
    rate_ptr,
    found_inf_ptr,
    grad_scale_ptr,
    momentum,
    weight_decay,
    eta,
    eps,
    CLIP: tl.constexpr,
    MAY_SKIP: tl.constexpr,
    SCALED: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    PIECE: tl.constexpr,
):
    """v ← m v + r (g + λ w), w ← w − γ v for one chunk; see `LARS`. Nothing moves where found_inf is set."""
    # From the start: what the sums of squares read last may still be in the cache.
    c = tl.program_id(0)
    r = tl.load(chunk_ptr + 2 * c)
    row_ptr = table_ptr + r * COLUMNS
    start = tl.multiple_of(tl.load(chunk_ptr + 2 * c + 1), CHUNK)
    w_ptr, g_ptr, v_ptr = _addresses(row_ptr)
    length = tl.load(row_ptr + 3)
    rate = tl.load(rate_ptr)
    factor = 1.0
    if SCALED:
        factor = 1.0 / tl.load(grad_scale_ptr)
    ratio = 1.0
    decay = 0.0
    if tl.load(row_ptr + 4) != 0:
        w_norm = tl.load(w_norm_ptr + r)
        g_norm = tl.load(g_norm_ptr + r) * factor
        ratio = eta * (w_norm / (g_norm + w_norm * weight_decay + eps))
        if CLIP:
            ratio = tl.minimum(ratio / rate, 1.0)
        ratio = tl.where(g_norm == 0.0, 0.0, ratio)
        ratio = tl.where(w_norm == 0.0, 1.0, ratio)
        decay = weight_decay
    if MAY_SKIP:
        length = tl.where(tl.load(found_inf_ptr) == 0.0, length, 0)
    if start + CHUNK <= length:
        i = start + tl.arange(0, CHUNK)
        _move(w_ptr, g_ptr, v_ptr, i, length, rate, ratio, momentum, factor, decay, True)
    else:
        for at in range(start, length, PIECE):
            i = at + tl.arange(0, PIECE)
            _move(w_ptr, g_ptr, v_ptr, i, length, rate, ratio, momentum, factor, decay, False)


class Table:
    """Where the tensors of a group are, on their device, and the norms of its weights and gradients.

    Gradients may come at other addresses with each step; the table is sent anew where they did, from pinned
    memory, which nobody waits for. A captured step keeps reading the memory it was captured with, so it has
    a table of its own, filled once after capture (`tables_sent_after_capture`) or else by each replay; and
    there is always pinned memory in store, since none can be had during capture.
    """

    def __init__(self, lengths: list[int], scaled: list[bool], device: torch.device) -> None:
        chunks = [-(-length // CHUNK) for length in lengths]
        firsts = [sum(chunks[:i]) for i in range(len(chunks))]
        self._rows = list(zip(lengths, scaled, firsts, chunks))
        pairs = [(i, j * CHUNK) for i, count in enumerate(chunks) for j in range(count)]
        self.chunks = torch.tensor(pairs, dtype=torch.int32).to(device)
        self.sums = torch.zeros((len(pairs), 2), dtype=torch.float32, device=device)
        self.w_norms = torch.zeros(len(lengths), dtype=torch.float32, device=device)
        self.g_norms = torch.zeros(len(lengths), dtype=torch.float32, device=device)
        self.rows = torch.zeros((len(lengths), _COLUMNS), dtype=torch.int64, device=device)
        self._plain = self.rows
        self._next_captured: Tensor | None = torch.zeros_like(self.rows)
        self._known: tuple[bool, list[tuple[int, int, int]]] | None = None
        self._captured: list[Tensor] = []  # what graphs go on reading
        self._sent, self._spare = self._memory(), self._memory()

    def _memory(self) -> Tensor:
        pinned = self.rows.is_cuda
        return torch.zeros(self.rows.shape, dtype=torch.int64, pin_memory=pinned)

    def _for_capture(self) -> Tensor:
        """A table made before capture: what is allocated during it shares memory with earlier parts of it."""
        assert self._next_captured is not None, "a captured step must be preceded by one that is not"
        rows, self._next_captured = self._next_captured, None
        return rows

    def point_to(self, params: list[Tensor], velocities: list[Tensor]) -> None:
        """Let `rows` hold the addresses of these tensors and of the gradients."""
        addresses = [(p.data_ptr(), p.grad.data_ptr(), v.data_ptr()) for p, v in zip(params, velocities)]  # type: ignore[union-attr]
        capturing = _capturing(self.rows)
        if (capturing, addresses) == self._known:
            return
        self._known = (capturing, addresses)
        content = torch.tensor([(*three, *rest) for three, rest in zip(addresses, self._rows)])
        rows = self.rows = self._for_capture() if capturing else self._plain
        if capturing:
            self._captured.append(rows)
            if deferred(lambda: rows.copy_(content)):
                return
            self._captured.append(self._spare)
        else:
            self._sent, self._spare = self._spare, self._memory()
            if self._next_captured is None:
                self._next_captured = torch.zeros_like(self._plain)
        memory = self._captured[-1] if capturing else self._sent
        memory.copy_(content)
        rows.copy_(memory, non_blocking=True)

    def measure(self, params: list[Tensor], velocities: list[Tensor]) -> Tensor:
        """The norms of the gradients, (P,); those of the weights are kept for `move`."""
        self.point_to(params, velocities)
        _squares_kernel[(len(self.chunks),)](
            self.rows, self.chunks, self.sums,
            COLUMNS=_COLUMNS, CHUNK=CHUNK, PIECE=min(_PIECE, CHUNK), num_warps=8,
        )  # fmt: skip
        _norms_kernel[(len(self._rows),)](
            self.rows, self.sums, self.w_norms, self.g_norms, COLUMNS=_COLUMNS, BLOCK=1024
        )
        return self.g_norms

    def move(
        self, params: list[Tensor], velocities: list[Tensor], group: dict[str, Any],
        found_inf: Tensor | None, grad_scale: Tensor | None,
    ) -> None:  # fmt: skip
        """One step of all `params` of a group by the norms of `measure`."""
        self.point_to(params, velocities)
        rate = group["lr"]
        if not isinstance(rate, Tensor):
            rate = torch.full((), rate, dtype=torch.float32, device=self.rows.device)
        rate = rate.float()
        _move_kernel[(len(self.chunks),)](
            self.rows, self.chunks, self.w_norms, self.g_norms, rate,
            rate if found_inf is None else found_inf.float(),
            rate if grad_scale is None else grad_scale.float(),
            float(group["momentum"]), float(group["weight_decay"]), float(group["eta"]), float(group["eps"]),
            CLIP=group["clip"], MAY_SKIP=found_inf is not None, SCALED=grad_scale is not None,
            COLUMNS=_COLUMNS, CHUNK=CHUNK, PIECE=min(_PIECE, CHUNK), num_warps=8,
        )  # fmt: skip


def _capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def build_table(params: list[Tensor], exclude_1d: bool) -> Table:
    scaled = [not (exclude_1d and p.ndim == 1) for p in params]
    return Table([p.numel() for p in params], scaled, params[0].device)


def applies(params: list[Tensor], velocities: list[Tensor]) -> bool:
    """Whether the kernels can move these: float32, dense, in one order of elements, aligned."""
    return all(
        t.dtype == torch.float32 and t.data_ptr() % 16 == 0 and t.stride() == p.stride() and _dense(p)
        for p, v in zip(params, velocities)
        for t in (p, p.grad, v)
        if t is not None
    )


def _dense(t: Tensor) -> bool:
    return t.is_contiguous() or (t.ndim == 4 and t.is_contiguous(memory_format=torch.channels_last))
