"""Eigenvectors by matrix products, for CUDA graphs, against LAPACK's."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RDMReg
from lpjepa.slicing import eigen, parse_directions
from lpjepa.slicing._bisection import eigh_by_products

SIZE = 48
FLOOR = 4e-9  # of float32 features in 512 dimensions
# The last interval of eigenvalues is 0.5 % wide, and half of that is all that can be left of a correlation.
CORRELATION = 0.0025


def uniform(low, high, size=SIZE):
    return low + (high - low) * torch.rand(2, size, dtype=torch.float64)


def constant(value, size):
    return torch.full((2, size), value, dtype=torch.float64)


SPECTRA = {
    "well separated": lambda: torch.logspace(0, -7, SIZE, dtype=torch.float64).expand(2, SIZE),
    "one octave": lambda: uniform(0.5, 1.0),
    "equal": lambda: constant(3.0, SIZE),
    "clusters": lambda: torch.cat([constant(1.0, 20), constant(0.5, 20), constant(1e-4, 8)], 1),
    "tight clusters": lambda: torch.cat([uniform(1, 1 + 1e-9, 24), uniform(1e-3, 1.001e-3, 24)], 1),
    "one spike": lambda: torch.cat([constant(1e4, 1), uniform(0.5, 1, SIZE - 1)], 1),
    "rank 12": lambda: torch.cat([uniform(0.01, 1, 12), constant(0.0, 36)], 1),
    "rank 1": lambda: torch.cat([constant(1e-6, 1), constant(0.0, 47)], 1),
}


def symmetric(eigenvalues):
    q = torch.linalg.qr(torch.randn(*eigenvalues.shape, eigenvalues.shape[-1], dtype=torch.float64)).Q
    a = q * eigenvalues.unsqueeze(-2) @ q.mT
    return (a + a.mT) / 2


def correlation(a, q, floor=FLOOR):
    """Largest |qᵢᵀ A qⱼ| / √(qᵢᵀAqᵢ · qⱼᵀAqⱼ), i ≠ j, over those above the floor: 0 for eigenvectors."""
    products = q.mT @ a @ q
    diagonal = products.diagonal(dim1=-2, dim2=-1)
    above = diagonal > 2 * floor * diagonal.amax(-1, keepdim=True)
    scale = torch.where(above, diagonal.clamp(min=1e-300).rsqrt(), 0.0)
    off_diagonal = products - torch.diag_embed(diagonal)
    return (off_diagonal * scale.unsqueeze(-1) * scale.unsqueeze(-2)).abs().max().item()


@pytest.mark.parametrize("name", SPECTRA)
def test_diagonalises(name):
    a = symmetric(SPECTRA[name]())
    eigenvalues, q = eigh_by_products(a, FLOOR)
    torch.testing.assert_close(q.mT @ q, torch.eye(SIZE).double().expand_as(a), rtol=0, atol=1e-12)
    assert correlation(a, q) < CORRELATION
    expected = torch.linalg.eigvalsh(a).flip(-1)
    largest = expected[:, :1]
    assert ((eigenvalues - expected).abs() < CORRELATION * expected.abs() + FLOOR * largest).all()
    assert (eigenvalues.diff() <= 0).all()
    # As a whole, what is left beside the diagonal.
    products = q.mT @ a @ q
    rest = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
    assert rest.norm() < 1e-3 * products.norm()


def test_separated_eigenvectors_are_lapacks():
    a = symmetric(SPECTRA["well separated"]())
    _, q = eigh_by_products(a, FLOOR)
    expected = torch.linalg.eigh(a).eigenvectors.flip(-1)
    cosine = (q * expected).sum(-2).abs()
    torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=0, atol=1e-12)


@pytest.mark.parametrize("floor", [FLOOR, 1e-12])
def test_no_spectrum_is_an_exception(floor):
    """Hundreds of random ones over the whole range, some with an eigenvalue near a middle."""
    exponents = torch.rand(300, 8, dtype=torch.float64) * torch.tensor(floor, dtype=torch.float64).log()
    a = symmetric(torch.exp(exponents))
    _, q = eigh_by_products(a, floor)
    torch.testing.assert_close(q.mT @ q, torch.eye(8).double().expand_as(a), rtol=0, atol=1e-12)
    assert correlation(a, q, floor) < 0.0035


@pytest.mark.parametrize("kind", ["diagonal", "pairs", "copies", "zero", "one number"])
def test_structured_matrices(kind):
    """Blocks, copies and zeros, as covariances of rectified features have them."""
    # Their eigenvectors are half in each coordinate: none of the coordinates stands out for the upper half.
    pairs = [torch.tensor([[1.0, c], [c, 1.0]], dtype=torch.float64) for c in torch.linspace(0.3, 0.6, 8)]
    a = {
        "diagonal": lambda: torch.diag(torch.arange(16.0).double()),
        "pairs": lambda: torch.block_diag(*pairs),
        "copies": lambda: torch.kron(torch.ones(4, 4).double(), torch.diag(torch.arange(1.0, 5.0).double())),
        "zero": lambda: torch.zeros(16, 16).double(),
        "one number": lambda: torch.full((1, 1), 7.0).double(),
    }[kind]().unsqueeze(0)
    eigenvalues, q = eigh_by_products(a, FLOOR)
    torch.testing.assert_close(q.mT @ q, torch.eye(a.shape[-1]).double().expand_as(a), rtol=0, atol=1e-12)
    expected = torch.linalg.eigvalsh(a).flip(-1)
    torch.testing.assert_close(eigenvalues, expected, rtol=CORRELATION, atol=FLOOR * a.abs().max().item())
    assert correlation(a, q) < CORRELATION


@pytest.fixture
def by_products(monkeypatch):
    """Calling it makes directions come from products, as they do under capture."""

    def switch():
        monkeypatch.setattr(torch.linalg, "eigh", lambda gram: map(_ascending, eigh_by_products(gram, FLOOR)))

    def _ascending(tensor):
        return tensor.flip(-1)

    return switch


@pytest.mark.parametrize(("n", "dim"), [(24, 40), (40, 24)])
@pytest.mark.parametrize("spec", ["eigen", {"random": 30, "bottom_eigen": 10}])
def test_directions_and_their_weights_are_those_of_eigh(by_products, spec, n, dim):
    z = torch.randn(2, n, dim) * torch.logspace(0, -2, dim) + 1
    z[0, :, 8:] = 0  # rank 8 in one view
    z[0, :, 6:8] = z[0, :, :2]  # and two copies: rank 6
    plan, seed = parse_directions(spec, 50), torch.tensor(3)
    expected = plan.draw(z, seed)
    by_products()
    found = plan.draw(z, seed)
    assert torch.equal(found.weight, expected.weight)
    cosine = (found.c * expected.c).sum(-1).abs()
    exists = (expected.weight > 0).expand_as(cosine)
    assert cosine[exists].min() > 0.999
    assert (found.c[~exists] == 0).all()


def test_the_loss_is_that_of_eigh(by_products):
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.3)
    z = torch.randn(2, 32, 48).relu()
    results = []
    for switch in (lambda: None, by_products):
        switch()
        leaf = z.clone().requires_grad_()
        loss = RDMReg(target, num_slices=64, directions="eigen")(leaf)
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    (expected, gradient), (found, other) = results
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    assert (other - gradient).norm() < 0.02 * gradient.norm()


class Operators(TorchDispatchMode):
    """The names of all operators that are called inside."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name().split(".")[0])
        return function(*args, **(kwargs or {}))


def test_nothing_is_read_back():
    """No operator whose result, or its shape, the host would have to wait for, and none from LAPACK."""
    a = symmetric(SPECTRA["clusters"]())
    with Operators() as called:
        eigh_by_products(a, FLOOR)
    assert {"aten::bmm", "aten::baddbmm", "aten::sort"} <= called.names
    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "_linalg", "linalg_qr")
    assert not [name for name in called.names if any(wait in name for wait in waits)]


def test_on_the_cpu_it_is_always_eigh(monkeypatch):
    monkeypatch.setattr(eigen, "eigh_by_products", lambda gram, floor: pytest.fail("not on the CPU"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    eigen.eigen_directions(torch.randn(1, 6, 4), 2, bottom=False, lower_half=False)


def test_operator_passes_torch_checks():
    """Strides included, which compiled code relies on."""
    torch.library.opcheck(
        torch.ops.lpjepa.eigh.default,
        (symmetric(uniform(0.1, 1.0, 6)), FLOOR),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("directions", ["eigen", {"random": 96, "bottom_eigen": 32}])
def test_captured_in_a_cuda_graph(directions):
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.3)
    features = torch.randn(2, 64, 96, device="cuda").relu()
    # Counting from the same seed: the captured call is the third.
    plain, captured = (RDMReg(target, num_slices=128, directions=directions).cuda() for _ in range(2))
    for _ in range(2):
        plain(features)
    leaf = features.clone().requires_grad_()
    (expected_gradient,) = torch.autograd.grad(expected := plain(leaf), leaf)
    # The leaf belongs to the stream of its first use, which therefore must be the one that is captured.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        z = features.clone().requires_grad_()
        for _ in range(2):
            torch.autograd.grad(captured(z), z)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = captured(z)
        (gradient,) = torch.autograd.grad(loss, z)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(loss, expected, rtol=5e-3, atol=0)
    assert (gradient - expected_gradient).norm() < 0.05 * expected_gradient.norm()
