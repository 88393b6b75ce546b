"""Views by kernels against views by torch's matrices, which are tested against torchvision and Pillow."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from lpjepa.data import ViewConfig, ViewParameters, Views, apply_views, draw_parameters
from lpjepa.data._colour import solarise

pytest.importorskip("triton")
from lpjepa.data import _fused_views
from lpjepa.data._fused_views import fused_views

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLAIN = {"flip": 0.0, "jitter_prob": 0.0, "grey": 0.0, "blur": 0.0, "solarize": 0.0}
ALL = {"flip": 0.5, "jitter_prob": 0.8, "grey": 0.3, "blur": 0.5, "solarize": 0.5}


def pixels(count, height, width):
    """Blocks of random colours: flat areas, edges, and some levels at zero and at full."""
    blocks = torch.rand(count, 3, height // 3 + 1, width // 3 + 1, generator=torch.Generator().manual_seed(1))
    blocks = (1.4 * blocks - 0.2).clamp(0, 1).repeat_interleave(3, 2).repeat_interleave(3, 3)
    return (255 * blocks[..., :height, :width]).round().to(torch.uint8).contiguous()


def drawn(count, config, shape, sizes=None, seed=0):
    return draw_parameters(count, config, shape, torch.Generator().manual_seed(seed), sizes=sizes)


def on(device, p):
    return ViewParameters(**{name: x.to(device) for name, x in vars(p).items()})


def by_kernels(images, p, config, part=...):
    return fused_views(images.to(DEVICE)[part], on(DEVICE, p), config).cpu()


def assert_same_views(ours, images, p, config, atol=1e-5):
    """Close to the torch path everywhere; on either side of the jump for pixels that are on the threshold."""
    before = apply_views(images, p, replace(config, solarize=0.0))
    assert ours.shape == before.shape
    assert ours.dtype == torch.float32
    if config.solarize == 0:
        torch.testing.assert_close(ours, before, atol=atol, rtol=0)
        return
    threshold = config.solarize_threshold
    after = torch.stack([solarise(x, chosen, threshold) for x, chosen in zip(before, p.solarize)])
    on_threshold = p.solarize[..., None, None, None] & ((before - threshold).abs() < atol)
    assert on_threshold.float().mean() < 1e-3
    flipped = torch.where((ours - before).abs() < (ours - (1 - before)).abs(), before, 1 - before)
    torch.testing.assert_close(ours, torch.where(on_threshold, flipped, after), atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("shape", "size", "interpolation"),
    [
        ((20, 26), 16, "bicubic"),
        ((9, 70), 7, "bilinear"),  # reduced more than three times
        ((13, 5), 35, "bicubic"),  # enlarged to more than one tile
        ((34, 40), 34, "bilinear"),
        ((1, 3), 4, "bicubic"),
        ((3, 2), 1, "bilinear"),
    ],
)
def test_crops_of_any_shape(shape, size, interpolation):
    config = ViewConfig(size=size, interpolation=interpolation, **{**PLAIN, "flip": 0.5})
    images, p = pixels(3, *shape), drawn(3, config, shape)
    assert 0 < p.flip.sum() < 6
    assert_same_views(by_kernels(images, p, config), images, p, config)


@pytest.mark.parametrize("operation", ["jitter_prob", "grey", "blur", "solarize"])
def test_each_operation_alone(operation):
    config = ViewConfig(size=18, num_views=1, **{**PLAIN, operation: 0.7})
    images, chosen = pixels(4, 20, 18), torch.tensor([[True, True, False, True]])
    p = replace(drawn(4, config, (20, 18)), **{operation.removesuffix("_prob"): chosen})
    made = by_kernels(images, p, config)
    assert_same_views(made, images, p, config)
    changed = made - apply_views(images, p, ViewConfig(size=18, num_views=1, **PLAIN))
    assert torch.equal(changed.abs().amax((2, 3, 4)) > 0.01, chosen)


def test_jitter_in_every_order():
    config = ViewConfig(size=8, num_views=1, **{**PLAIN, "jitter_prob": 1.0})
    orders = torch.cartesian_prod(*[torch.arange(4)] * 4)
    orders = orders[[len(set(order.tolist())) == 4 for order in orders]]
    images, p = pixels(24, 8, 8), replace(drawn(24, config, (8, 8)), order=orders[None])
    assert_same_views(by_kernels(images, p, config), images, p, config)


@pytest.mark.parametrize(("size", "count"), [(20, 16), (40, 4)])
def test_all_operations_together_in_one_tile_and_in_several(size, count):
    config = ViewConfig(size=size, **ALL)
    images, p = pixels(count, 24, 28), drawn(count, config, (24, 28))
    every = 13 * torch.arange(2 * count).view(2, count)  # of 16 images, each combination once
    names = ("flip", "jitter", "grey", "blur", "solarize")
    p = replace(p, **{name: (every >> bit) % 2 == 1 for bit, name in enumerate(names)})
    assert_same_views(by_kernels(images, p, config), images, p, config)


def test_squeezed_images_have_fractional_crops():
    config = ViewConfig(size=12, **{**PLAIN, "flip": 0.5})
    sizes = torch.tensor([[30, 50], [17, 90], [64, 23]])
    images, p = pixels(3, 16, 16), drawn(3, config, (16, 16), sizes)
    assert not torch.equal(p.left, p.left.round())
    assert_same_views(by_kernels(images, p, config), images, p, config)


def test_nothing_beside_the_images_is_read():
    """Not even with a weight of zero: beside the images stands what is no number."""
    config = ViewConfig(size=11, **{**PLAIN, "flip": 0.5})
    images, sizes = pixels(2, 9, 6) / 255, torch.tensor([[50, 7], [3, 40]])
    framed = torch.full((4, 5, 13, 10), float("nan"))
    framed[1:3, 1:4, 2:11, 2:8] = images
    p = drawn(2, config, (9, 6), sizes)
    assert_same_views(by_kernels(framed, p, config, part=np.s_[1:3, 1:4, 2:11, 2:8]), images, p, config)


@pytest.mark.parametrize("place", [0.0, 9.0])
def test_a_crop_without_pixels_takes_the_nearest(place):
    config = ViewConfig(size=3, num_views=1, **PLAIN)
    images, p = pixels(1, 9, 9), drawn(1, config, (9, 9))
    where = {"left": torch.full((1, 1), place), "width": torch.zeros(1, 1)}
    last = {"left": torch.full((1, 1), min(place, 8.0)), "width": torch.ones(1, 1)}
    made = by_kernels(images, replace(p, **where), config)
    torch.testing.assert_close(made, apply_views(images, replace(p, **last), config), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float_images_in_any_layout(dtype):
    config = ViewConfig(size=10, **{**PLAIN, "jitter_prob": 1.0})
    images = (pixels(2, 14, 11) / 255).to(dtype).contiguous(memory_format=torch.channels_last)
    p = drawn(2, config, (14, 11))
    assert_same_views(by_kernels(images, p, config), images, p, config)


def test_solarised_levels_are_pillows():
    config = ViewConfig(size=16, num_views=1, **{**PLAIN, "solarize": 1.0})
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    whole = {"top": 0.0, "left": 0.0, "height": 16.0, "width": 16.0}
    p = replace(drawn(1, config, (16, 16)), **{name: torch.full((1, 1), x) for name, x in whole.items()})
    made = by_kernels(torch.from_numpy(levels).expand(1, 3, 16, 16), p, config)
    theirs = np.asarray(ImageOps.solarize(Image.fromarray(levels)))
    assert np.array_equal((255 * made[0, 0, 0]).round().byte().numpy(), theirs)


@pytest.fixture
def kernels_everywhere(monkeypatch):
    monkeypatch.setattr(_fused_views, "applies", lambda images: True)


def test_views_are_normalised_and_channels_last(monkeypatch):
    images, config = pixels(2, 9, 12), ViewConfig(size=8, **{**ALL, "solarize": 0.0})
    views, seed = Views(config), torch.tensor(3)
    by_torch = views(images, seed)
    with monkeypatch.context() as patch:
        patch.setattr(_fused_views, "applies", lambda images: True)
        made = views(images.to(DEVICE), seed.to(DEVICE))
        again = views(images.to(DEVICE), seed.to(DEVICE))
    assert torch.equal(made, again)
    assert made.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(made.cpu(), by_torch, atol=5e-5, rtol=0)


def test_views_by_kernels_trace_without_graph_breaks(kernels_everywhere):
    images, seed = pixels(2, 8, 8).to(DEVICE), torch.tensor(9, device=DEVICE)
    views = Views(ViewConfig(size=8, blur=0.5))
    compiled = torch.compile(views, fullgraph=True, backend="aot_eager")
    made = views(images, seed)
    traced = compiled(images, seed)
    assert traced.stride() == made.stride()
    torch.testing.assert_close(traced, made, atol=1e-5, rtol=0)


def test_the_operator_keeps_its_contract(monkeypatch):
    given, operator, config = [], torch.ops.lpjepa.fused_views, ViewConfig(size=4, **ALL)
    monkeypatch.setattr(torch.ops.lpjepa, "fused_views", lambda *arguments: given.append(arguments))
    fused_views(pixels(1, 5, 4).to(DEVICE), on(DEVICE, drawn(1, config, (5, 4))), config)
    torch.library.opcheck(operator.default, given[0], test_utils=("test_schema", "test_faketensor"))


def test_a_cpu_and_images_with_a_gradient_keep_to_torch():
    assert not _fused_views.applies(torch.zeros(1, 3, 4, 4))
    config = ViewConfig(size=4, **PLAIN)
    images = torch.rand(1, 3, 4, 4, device=DEVICE, requires_grad=True)
    apply_views(images, on(DEVICE, drawn(1, config, (4, 4))), config).sum().backward()
    assert images.grad.sum() > 0


def test_grey_images_keep_to_torch():
    on_gpu = {"is_cuda": True, "dtype": torch.uint8, "requires_grad": False}
    assert _fused_views.applies(SimpleNamespace(shape=(2, 3, 4, 4), **on_gpu))
    assert not _fused_views.applies(SimpleNamespace(shape=(2, 1, 4, 4), **on_gpu))


def test_parameters_of_another_number_of_images_are_refused():
    config = ViewConfig(size=4, **PLAIN)
    with pytest.raises(ValueError, match="of 3 images do not go with 2"):
        fused_views(pixels(2, 4, 4), drawn(3, config, (4, 4)), config)


_COMPILED = """
import torch
from lpjepa.data import ViewConfig, _fused_views, draw_parameters
from lpjepa.training import startup

with startup.launches_noted() as noted:
    for size in (64, 35):
        config = ViewConfig(size=size, blur=0.5)
        p = draw_parameters(4, config, (40, 72), torch.Generator())
        _fused_views.fused_views(torch.zeros(4, 3, 40, 72, dtype=torch.uint8), p, config)
for launch in noted:
    print(launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.options).asm["ttgir"])
"""


def test_warps_run_along_rows_of_pixels(printed_by_compiler):
    """By the compiler itself; its versions differ where they may choose."""
    found = []
    modules = re.split(r"(?=^#blocked = )", printed_by_compiler(_COMPILED), flags=re.M)[1:]
    for code in modules:
        layouts = dict(re.findall(r"^(#\w+) = #ttg\.blocked<(.*)>", code, re.M))
        tiles = re.findall(r"tt\.(?:load|store) .*tensor<\d+x\d+x!tt\.ptr<\w+>, (#\w+)>", code)
        found += [layouts[tile] for tile in tiles]
    assert len(modules) == 10
    assert found
    assert all("order = [1, 0]" in layout for layout in found)


def test_data_is_imported_without_triton():
    code = "import sys, lpjepa.data; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "size"), [((224, 224), 224), ((256, 200), 224), ((32, 32), 32)])
def test_on_a_gpu_eager_compiled_and_captured(shape, size):
    config = ViewConfig(size=size, **ALL)
    images, p = pixels(16, *shape), drawn(16, config, shape)
    there, parameters = images.cuda(), on("cuda", p)
    eager = apply_views(there, parameters, config)
    # Beyond 128 pixels, centres of the resizing kernels are rounded to 2⁻¹⁷ of a pixel, in both directions;
    # jitter more than doubles what that makes.
    assert_same_views(eager.cpu(), images, p, config, atol=1e-4 if size > 128 else 1e-5)
    compiled = torch.compile(lambda images: apply_views(images, parameters, config), dynamic=False)
    assert torch.equal(compiled(there), eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = apply_views(there, parameters, config)
    for _ in range(2):
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, eager)
    there.copy_(there.flip(0))
    graph.replay()
    assert torch.equal(captured, apply_views(there, parameters, config))
