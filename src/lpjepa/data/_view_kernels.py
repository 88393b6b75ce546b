"""Triton kernels that make views: each pixel is computed where it is needed, from the few that it depends on.

A view is crop and resize along columns, the same along rows with all colour operations on the way out, and a
blur along columns and along rows for the images that have one. Programs take a tile of one view; a program
of a view that does not need a kernel leaves it at once. Between kernels stand float32 maps:

    images (N, 3, H, W) -> wide (B, 3, rows of the crop, S) -> views (B, S, S, 3)

with b = v · N + n counting views; blur goes from views to the memory of the wide map and back. Contrast
needs the mean grey of the image as the operations before it left it. Computing those pixels twice costs less
than writing and reading them, so `grey_kernel` sums and `rows_kernel` starts anew from the wide map. A view
of one tile needs no sums of others.

A tile whose addresses are not seen to be neighbours is written as one dimension, rows below each other. With
two, versions of Triton differ in the one along which they lay a warp: down the rows, each of its threads
would fetch a line of memory of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpjepa.data import _colour, _fused_views

FLIP, JITTER, GREY, BLUR, SOLARIZE = (tl.constexpr(bit) for bit in _fused_views.BITS)
BRIGHTNESS, CONTRAST = tl.constexpr(_colour.BRIGHTNESS), tl.constexpr(_colour.CONTRAST)
SATURATION, HUE = tl.constexpr(_colour.SATURATION), tl.constexpr(_colour.HUE)
ORDER = tl.constexpr(_fused_views.ORDER)
RED, GREEN, BLUE = tl.constexpr(_colour._RED), tl.constexpr(_colour._GREEN), tl.constexpr(_colour._BLUE)


@triton.jit
def _tile(ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """View of this program, and first row and column of its tile of a map (ROWS, COLUMNS)."""
    columns: tl.constexpr = (COLUMNS + BLOCK_C - 1) // BLOCK_C
    tiles: tl.constexpr = (ROWS + BLOCK_R - 1) // BLOCK_R * columns
    b = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    return b, tile // columns * BLOCK_R, tile % columns * BLOCK_C


@triton.jit
def _bounds(start, length, SIZE: tl.constexpr):
    """First pixel of the crop, and the one after its last; at least one pixel, whatever the crop."""
    low = tl.minimum(tl.maximum(tl.floor(start), 0.0), SIZE - 1.0).to(tl.int32)
    high = tl.minimum(tl.ceil(start + length), SIZE + 0.0).to(tl.int32)
    return low, tl.maximum(high, low + 1)


@triton.jit
def _window(place, start, length, low, high, S: tl.constexpr, CUBIC: tl.constexpr):
    """Centre and first pixel of the kernel of each place; 1 / its stretching; how many pixels it covers."""
    step = tl.div_rn(length, S + 0.0)
    stretch = tl.maximum(step, 1.0)
    reach = 2.0 * stretch if CUBIC else stretch
    centre = start + place * step
    # Pixels strictly within `reach` of the centre, no more than ceil(2 · reach): beyond, weights are zero.
    first = tl.maximum(tl.floor(centre - reach - 0.5).to(tl.int32) + 1, low)
    taps = tl.minimum(tl.ceil(2.0 * reach).to(tl.int32), high - low)
    return centre, first, tl.div_rn(1.0 + 0.0 * stretch, stretch), taps


@triton.jit
def _weight(pixel, centre, shrink, high, CUBIC: tl.constexpr):
    """The resizing kernel of `_separable.resize_weights` before it is normalised; zero from `high` on."""
    distance = tl.abs(pixel + 0.5 - centre) * shrink
    weight = _clamp(1.0 - distance)
    if CUBIC:
        # Keys' two cubics, written in how far a pixel is inside of each, which is zero outside of both.
        outer = _clamp(2.0 - distance)
        weight = weight * (0.5 + weight * (2.0 - 1.5 * weight)) + outer * outer * (0.5 * outer - 0.5)
    return tl.where(pixel < high, weight, 0.0)


@triton.jit
def columns_kernel(
    image_ptr, top_ptr, left_ptr, height_ptr, width_ptr, plan_ptr, wide_ptr, images, stride_n,
    STRIDE_C: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, W: tl.constexpr,
    H: tl.constexpr, S: tl.constexpr, LINES: tl.constexpr, CUBIC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """wide[b, c, y - top, s] = resized row y of the crop, mirrored where the view is; values as stored.

    BLOCK_R is at most H: a tile that would stand out of the image moves up, and no load needs a mask.
    """
    b, first_row, first_s = _tile(H, S, BLOCK_R, BLOCK)
    low_y, high_y = _bounds(tl.load(top_ptr + b), tl.load(height_ptr + b), H)
    if first_row >= high_y - low_y:
        return
    first_y = tl.minimum(low_y + first_row, H - BLOCK_R)
    i = tl.arange(0, BLOCK_R * BLOCK)
    row, s = i // BLOCK, first_s + i % BLOCK
    left, width = tl.load(left_ptr + b), tl.load(width_ptr + b)
    low, high = _bounds(left, width, W)
    centre, first, shrink, taps = _window(tl.minimum(s, S - 1) + 0.5, left, width, low, high, S, CUBIC)
    lines = image_ptr + (b % images).to(tl.int64) * stride_n + first_y.to(tl.int64) * STRIDE_H
    red = tl.zeros((BLOCK_R * BLOCK,), tl.float32)
    green = tl.zeros((BLOCK_R * BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK_R * BLOCK,), tl.float32)
    total = tl.zeros((BLOCK_R * BLOCK,), tl.float32)
    for tap in range(taps):
        x = first + tap
        weight = _weight(x, centre, shrink, high, CUBIC)
        # Beyond the crop weights are zero: any pixel will do.
        at = lines + tl.minimum(x, high - 1).to(tl.int64) * STRIDE_W + row.to(tl.int64) * STRIDE_H
        red += weight * tl.load(at).to(tl.float32)
        green += weight * tl.load(at + STRIDE_C).to(tl.float32)
        blue += weight * tl.load(at + 2 * STRIDE_C).to(tl.float32)
        total += weight
    share = tl.div_rn(1.0 + 0.0 * total, total)
    # Mirroring when storing also hides from Triton that columns are neighbours: it would give each thread
    # four of them, whose weights and pixels differ, instead of one column with many rows.
    mirrored = tl.where(tl.load(plan_ptr + b) & FLIP != 0, S - 1 - s, s)
    y = first_y + row
    inside = (y >= low_y) & (y < high_y) & (s < S)
    out = wide_ptr + b.to(tl.int64) * (3 * LINES * S) + (y - low_y) * S + mirrored
    tl.store(out, red * share, inside)
    tl.store(out + LINES * S, green * share, inside)
    tl.store(out + 2 * LINES * S, blue * share, inside)


@triton.jit
def _load(at, inside, WHOLE: tl.constexpr):
    """Without a mask where no tile stands out of its map."""
    return tl.load(at) if WHOLE else tl.load(at, inside, 0.0)


@triton.jit
def _resized_rows(
    wide_ptr, top, height, first_row, first_s, unit,
    H: tl.constexpr, S: tl.constexpr, LINES: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Red, green and blue of a tile in [0, 1], from the wide map of its view."""
    low, high = _bounds(top, height, H)
    row, s = first_row + tl.arange(0, BLOCK)[:, None], first_s + tl.arange(0, BLOCK)[None, :]
    centre, first, shrink, taps = _window(tl.minimum(row, S - 1) + 0.5, top, height, low, high, S, CUBIC)
    red = tl.zeros((BLOCK, BLOCK), tl.float32)
    green = tl.zeros((BLOCK, BLOCK), tl.float32)
    blue = tl.zeros((BLOCK, BLOCK), tl.float32)
    total = tl.zeros((BLOCK, 1), tl.float32)
    for tap in range(taps):
        y = first + tap
        weight = _weight(y, centre, shrink, high, CUBIC)
        at = wide_ptr + ((tl.minimum(y, high - 1) - low) * S + s)
        red += weight * _load(at, s < S, S % BLOCK == 0)
        green += weight * _load(at + LINES * S, s < S, S % BLOCK == 0)
        blue += weight * _load(at + 2 * LINES * S, s < S, S % BLOCK == 0)
        total += weight
    share = tl.div_rn(1.0 + 0.0 * total, total)
    # `unit` last: a flat area keeps its exact level, on which solarisation turns.
    return _clamp(red * share * unit), _clamp(green * share * unit), _clamp(blue * share * unit)


@triton.jit
def _clamp(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _grey(red, green, blue):
    return red * RED + green * GREEN + blue * BLUE


@triton.jit
def _blend(red, green, blue, factor, other):
    return _clamp(red * factor + other), _clamp(green * factor + other), _clamp(blue * factor + other)


@triton.jit
def _turn_hue(red, green, blue, shift):
    """As `_colour.turn_hue`: where channels tie, the formulas of the hue agree."""
    low = tl.minimum(tl.minimum(red, green), blue)
    high = tl.maximum(tl.maximum(red, green), blue)
    chroma = high - low
    upright = 1.0 / tl.maximum(chroma, 1.2e-38)
    hue = tl.where(green == high, (blue - red) * upright + 2.0, (red - green) * upright + 4.0)
    hue = tl.where(red == high, (green - blue) * upright, hue) + 6.0 * shift
    hue -= 6.0 * tl.floor(hue * (1 / 6))
    red = _clamp(tl.abs(hue - 3.0) - 1.0) * chroma + low
    green = _clamp(2.0 - tl.abs(hue - 2.0)) * chroma + low
    blue = _clamp(2.0 - tl.abs(hue - 4.0)) * chroma + low
    return red, green, blue


@triton.jit
def _operation(plan, place):
    return (plan >> (ORDER + 2 * place)) & 3


@triton.jit
def _place_of_contrast(plan):
    place = 0 * plan
    for i in tl.static_range(1, 4):
        place = tl.where(_operation(plan, i) == CONTRAST, i, place)
    return place


@triton.jit
def _colours(red, green, blue, plan, first, end, factors_ptr):
    """The jitter operations from place `first` to before `end`, none of which is contrast."""
    brightness, saturation = tl.load(factors_ptr + BRIGHTNESS), tl.load(factors_ptr + SATURATION)
    shift = tl.load(factors_ptr + HUE)
    for place in range(first, end):
        operation = _operation(plan, place)
        if operation == HUE:
            red, green, blue = _turn_hue(red, green, blue, shift)
        elif operation == SATURATION:
            other = _grey(red, green, blue) * (1.0 - saturation)
            red, green, blue = _blend(red, green, blue, saturation, other)
        else:
            red, green, blue = _blend(red, green, blue, brightness, 0.0)
    return red, green, blue


@triton.jit
def grey_kernel(
    wide_ptr, top_ptr, height_ptr, plan_ptr, factors_ptr, sums_ptr, unit,
    H: tl.constexpr, S: tl.constexpr, LINES: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums[b, tile] of the grey that contrast finds, for the views that are jittered."""
    b, first_row, first_s = _tile(S, S, BLOCK, BLOCK)
    plan = tl.load(plan_ptr + b).to(tl.int32)
    if plan & JITTER == 0:
        return
    red, green, blue = _resized_rows(
        wide_ptr + b.to(tl.int64) * (3 * LINES * S), tl.load(top_ptr + b), tl.load(height_ptr + b),
        first_row, first_s, unit, H, S, LINES, CUBIC, BLOCK,
    )  # fmt: skip
    place = _place_of_contrast(plan)
    red, green, blue = _colours(red, green, blue, plan, 0, place, factors_ptr + b * 4)
    tl.store(sums_ptr + tl.program_id(0), _sum_inside(_grey(red, green, blue), first_row, first_s, S, BLOCK))


@triton.jit
def _sum_inside(x, first_row, first_s, S: tl.constexpr, BLOCK: tl.constexpr):
    row, s = first_row + tl.arange(0, BLOCK)[:, None], first_s + tl.arange(0, BLOCK)[None, :]
    inside = (row < S) & (s < S)
    return tl.sum(tl.sum(tl.where(inside, x, 0.0), 1), 0)


@triton.jit
def rows_kernel(
    wide_ptr, top_ptr, height_ptr, plan_ptr, factors_ptr, sums_ptr, out_ptr, unit, threshold,
    scale_r, scale_g, scale_b, shift_r, shift_g, shift_b,
    H: tl.constexpr, S: tl.constexpr, LINES: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr,
    OPERATIONS: tl.constexpr, TILES: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """out (S, S, 3) of each view: normalised, unless it is still to be blurred."""
    b, first_row, first_s = _tile(S, S, BLOCK, BLOCK)
    plan = tl.load(plan_ptr + b).to(tl.int32)
    red, green, blue = _resized_rows(
        wide_ptr + b.to(tl.int64) * (3 * LINES * S), tl.load(top_ptr + b), tl.load(height_ptr + b),
        first_row, first_s, unit, H, S, LINES, CUBIC, BLOCK,
    )  # fmt: skip
    if JITTER & OPERATIONS:
        factors, place = factors_ptr + b * 4, _place_of_contrast(plan)
        if plan & JITTER != 0:
            red, green, blue = _colours(red, green, blue, plan, 0, place, factors)
            if TILES == 1:
                total = _sum_inside(_grey(red, green, blue), first_row, first_s, S, BLOCK)
            else:
                t = tl.arange(0, BLOCK_T)
                total = tl.sum(tl.load(sums_ptr + b * TILES + t, t < TILES, 0.0), 0)
            contrast = tl.load(factors + CONTRAST)
            other = total * (1.0 / (S * S)) * (1.0 - contrast)
            red, green, blue = _blend(red, green, blue, contrast, other)
            red, green, blue = _colours(red, green, blue, plan, place + 1, 4, factors)
    if GREY & OPERATIONS:
        luma = _grey(red, green, blue)
        turned = plan & GREY != 0
        red, green = tl.where(turned, luma, red), tl.where(turned, luma, green)
        blue = tl.where(turned, luma, blue)
    if BLUR & OPERATIONS:
        blurred = plan & BLUR != 0
        plan = tl.where(blurred, plan & ~SOLARIZE, plan)
        scale_r, shift_r = tl.where(blurred, 1.0, scale_r), tl.where(blurred, 0.0, shift_r)
        scale_g, shift_g = tl.where(blurred, 1.0, scale_g), tl.where(blurred, 0.0, shift_g)
        scale_b, shift_b = tl.where(blurred, 1.0, scale_b), tl.where(blurred, 0.0, shift_b)
    if SOLARIZE & OPERATIONS:
        threshold = _own_threshold(plan, threshold)
        red, green, blue = _solarise(red, threshold), _solarise(green, threshold), _solarise(blue, threshold)
    red, green, blue = red * scale_r + shift_r, green * scale_g + shift_g, blue * scale_b + shift_b
    # One store of neighbouring words, blue twice: three stores of every third word make three times as many
    # transactions.
    pixels = tl.reshape(tl.join(tl.join(red, blue), tl.join(green, blue)), (4 * BLOCK * BLOCK,))
    word = tl.arange(0, 4 * BLOCK * BLOCK)
    row, x = first_row + word // (4 * BLOCK), first_s + word // 4 % BLOCK
    channel = tl.minimum(word % 4, 2)
    out = out_ptr + b.to(tl.int64) * (3 * S * S) + (row * (3 * S) + x * 3 + channel)
    if S % BLOCK == 0:
        tl.store(out, pixels)
    else:
        tl.store(out, pixels, (row < S) & (x < S))


@triton.jit
def _own_threshold(plan, threshold):
    """The threshold of a view that is solarised; no pixel reaches that of others."""
    return tl.where(plan & SOLARIZE != 0, threshold, float("inf"))


@triton.jit
def _solarise(x, threshold):
    return tl.where(x >= threshold, 1.0 - x, x)


@triton.jit
def blur_kernel(
    from_ptr, plan_ptr, sigma_ptr, to_ptr, threshold,
    scale_r, scale_g, scale_b, shift_r, shift_g, shift_b,
    S: tl.constexpr, RADIUS: tl.constexpr, LAST: tl.constexpr, OPERATIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Blur of maps (S, 3 · S) along columns or, LAST, along rows, and then solarise and normalise.

    Beyond a border its pixel goes on.
    """
    b, first_row, first_word = _tile(S, 3 * S, BLOCK, BLOCK)
    plan = tl.load(plan_ptr + b).to(tl.int32)
    if plan & BLUR == 0:
        return
    if LAST:
        row, word = first_row + tl.arange(0, BLOCK)[:, None], first_word + tl.arange(0, BLOCK)[None, :]
    else:
        i = tl.arange(0, BLOCK * BLOCK)
        row, word = first_row + i // BLOCK, first_word + i % BLOCK
    inside = (row < S) & (word < 3 * S)
    x, channel = word // 3, word % 3
    if not LAST:
        # The same number, in which Triton does not see neighbours: see `columns_kernel`.
        word = x * 3 + channel
    source = from_ptr + b.to(tl.int64) * (3 * S * S)
    value = _load(source + (row * (3 * S) + word), inside, S % BLOCK == 0)
    sigma = tl.load(sigma_ptr + b)
    falloff = -0.5 / (sigma * sigma)
    total = 1.0 + 0.0 * sigma
    # Beyond six standard deviations nothing is left in float32.
    for distance in range(1, tl.minimum(RADIUS, tl.ceil(6.0 * sigma).to(tl.int32)) + 1):
        weight = tl.exp(distance * distance * falloff)
        if LAST:
            before = tl.maximum(row - distance, 0) * (3 * S) + word
            after = tl.minimum(row + distance, S - 1) * (3 * S) + word
        else:
            before = (tl.maximum(x - distance, 0) * 3 + channel).to(tl.int64) + row.to(tl.int64) * (3 * S)
            after = (tl.minimum(x + distance, S - 1) * 3 + channel).to(tl.int64) + row.to(tl.int64) * (3 * S)
        both = _load(source + before, inside, S % BLOCK == 0) + _load(source + after, inside, S % BLOCK == 0)
        value += weight * both
        total += 2.0 * weight
    value *= 1.0 / total
    if LAST:
        if SOLARIZE & OPERATIONS:
            value = _solarise(value, _own_threshold(plan, threshold))
        scale = tl.where(channel == 0, scale_r, tl.where(channel == 1, scale_g, scale_b))
        shift = tl.where(channel == 0, shift_r, tl.where(channel == 1, shift_g, shift_b))
        value = value * scale + shift
    tl.store(to_ptr + b.to(tl.int64) * (3 * S * S) + (row * (3 * S) + word), value, inside)
