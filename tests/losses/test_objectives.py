"""What holds for every objective: shapes, dtypes, gradients, randomness, errors."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.losses import (
    LeJEPA,
    LpJEPA,
    NonNegativeContrastive,
    NonNegativeVICReg,
    RDMReg,
    RectifiedLpJEPA,
    SIGReg,
    SimCLR,
    VICReg,
)

TARGET = RectifiedGeneralizedGaussian(torch.tensor(0.1), torch.tensor(0.7), torch.tensor(1.0))
GAUSSIAN = GeneralizedGaussian(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0))
OBJECTIVES = {
    "RDMReg": lambda: RDMReg(TARGET, num_slices=8, axes_weight=0.1),
    "RDMReg exact": lambda: RDMReg(GAUSSIAN, num_slices=8, target_quantiles="exact"),
    "SIGReg": lambda: SIGReg(num_slices=8),
    "RectifiedLpJEPA": lambda: RectifiedLpJEPA(TARGET, num_slices=8),
    "LpJEPA": lambda: LpJEPA(GAUSSIAN, num_slices=8, discrepancy="energy"),
    "LeJEPA": lambda: LeJEPA(num_slices=8),
    "VICReg": VICReg,
    "NonNegativeVICReg": NonNegativeVICReg,
    "SimCLR": SimCLR,
    "NonNegativeContrastive": NonNegativeContrastive,
}
SLICED = [name for name in OBJECTIVES if "JEPA" in name or ("Reg" in name and "VIC" not in name)]
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


@every_objective
def test_views_one_by_one_or_stacked(name):
    z_VND = torch.randn(3, 6, 4)
    torch.testing.assert_close(OBJECTIVES[name]()(*z_VND), OBJECTIVES[name]()(z_VND))


@every_objective
def test_components_begin_with_the_loss(name):
    z_VND = torch.randn(2, 6, 4)
    parts = OBJECTIVES[name]().components(z_VND)
    assert parts._fields[0] == "loss"
    assert all(part.shape == () for part in parts)
    torch.testing.assert_close(parts.loss, OBJECTIVES[name]()(z_VND))


@every_objective
def test_gradient_in_float64(name):
    z_VND = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)

    # A new module each time: the same directions and targets at every evaluation.
    assert torch.autograd.gradcheck(lambda z: OBJECTIVES[name]()(z), z_VND)


@every_objective
@settings(max_examples=15, deadline=None)
@given(
    views=st.integers(2, 4),
    samples=st.integers(2, 9),
    dim=st.integers(1, 7),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    strided=st.booleans(),
)
def test_any_shape_dtype_and_stride(name, views, samples, dim, dtype, strided):
    z_VND = torch.randn(views, samples, dim).to(dtype)
    if strided:
        z_VND = z_VND.transpose(0, 2).contiguous().transpose(0, 2)
    z_VND.requires_grad_()
    loss = OBJECTIVES[name]()(z_VND)
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert z_VND.grad.dtype == dtype
    assert loss.isfinite()
    assert z_VND.grad.isfinite().all()
    # The same numbers in float32 or better give the same loss: nothing is computed in 16 bits.
    reference = OBJECTIVES[name]()(z_VND.detach().to(loss.dtype).contiguous())
    torch.testing.assert_close(loss.detach(), reference, rtol=1e-4, atol=1e-5)


@every_objective
def test_autocast_does_not_lower_the_precision(name):
    z_VND = torch.randn(2, 16, 8, requires_grad=True)
    expected = OBJECTIVES[name]()(z_VND)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = OBJECTIVES[name]()(z_VND)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    found.backward()


@every_objective
def test_the_order_of_the_samples_does_not_matter(name):
    z_VND = torch.randn(2, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(OBJECTIVES[name]()(z_VND[:, torch.randperm(9)]), OBJECTIVES[name]()(z_VND))


@pytest.mark.parametrize("name", SLICED)
def test_randomness_is_saved_and_restored(name):
    z_VND = torch.randn(2, 12, 6)
    criterion = OBJECTIVES[name]()
    first = criterion(z_VND)
    saved = {key: value.clone() for key, value in criterion.state_dict().items()}
    second = criterion(z_VND)
    assert first != second
    resumed = OBJECTIVES[name]()
    resumed.load_state_dict(saved)
    assert resumed(z_VND) == second


@pytest.mark.parametrize("name", SLICED)
def test_a_generator_fixes_the_randomness(name):
    z_VND = torch.randn(2, 12, 6)
    criterion = OBJECTIVES[name]()
    generator = torch.Generator().manual_seed(3)
    values = [criterion(z_VND, generator=generator) for _ in range(2)]
    assert values[0] != values[1]
    assert criterion(z_VND, generator=generator.manual_seed(3)) == values[0]


@pytest.mark.parametrize("name", SLICED)
def test_seeds_differ(name):
    z_VND = torch.randn(2, 12, 6)
    other = OBJECTIVES[name]()
    for module in other.modules():
        if hasattr(module, "counter"):
            module.seed.fill_(1)
    assert OBJECTIVES[name]()(z_VND) != other(z_VND)


@every_objective
def test_every_objective_takes_the_keywords(name):
    z_VND = torch.randn(2, 6, 4)
    c = F.normalize(torch.randn(5, 4), dim=1)
    loss = OBJECTIVES[name]()(
        z_VND, projections=c, target_samples=torch.randn(2, 6, 4), generator=torch.Generator()
    )
    assert loss.isfinite()


@every_objective
def test_bad_features_are_named(name):
    criterion = OBJECTIVES[name]()
    with pytest.raises(ValueError, match=r"the batch has 1 sample"):
        criterion(torch.randn(2, 1, 4))
    for bad in (torch.nan, torch.inf):
        z_VND = torch.randn(2, 5, 4)
        z_VND[1, 2, 3] = bad
        with pytest.raises(ValueError, match="features contain NaN or infinite values"):
            criterion(z_VND)
    with pytest.raises(ValueError, match=r"views must have one shape \(N, D\), got \(5, 4\), \(6, 4\)"):
        criterion(torch.randn(5, 4), torch.randn(6, 4))
    with pytest.raises(ValueError, match=r"must have shape \(N, D\) or \(V, N, D\)"):
        criterion(torch.randn(2, 2, 5, 4))
    with pytest.raises(TypeError, match=r"must be floating-point tensors, got a tensor of torch.int64"):
        criterion(torch.zeros(2, 5, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match="pass the views"):
        criterion()


@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in ("RDMReg", "RDMReg exact", "SIGReg")])
def test_one_view_is_not_enough(name):
    with pytest.raises(ValueError, match="compares at least 2 views, got 1"):
        OBJECTIVES[name]()(torch.randn(5, 4))


@pytest.mark.parametrize("name", ["RDMReg", "RDMReg exact", "SIGReg"])
def test_regularizers_take_one_view(name):
    z = torch.randn(6, 4)
    torch.testing.assert_close(OBJECTIVES[name]()(z), OBJECTIVES[name]()(z.unsqueeze(0)))


@pytest.mark.parametrize("name", SLICED)
def test_bad_projections_are_named(name):
    z_VND = torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match=r"projections must have shape \(K, 4\)"):
        OBJECTIVES[name]()(z_VND, projections=F.normalize(torch.randn(7, 3), dim=1))
    with pytest.raises(ValueError, match="projections must have rows of unit norm"):
        OBJECTIVES[name]()(z_VND, projections=torch.ones(7, 4))
    with pytest.raises(ValueError, match=r"projections must have shape \(K, 4\)"):
        OBJECTIVES[name]()(z_VND, projections=F.normalize(torch.randn(4), dim=0))
    with pytest.raises(ValueError, match="projections must hold at least one direction"):
        OBJECTIVES[name]()(z_VND, projections=torch.zeros(0, 4))
    with pytest.raises(TypeError, match="projections must be a tensor"):
        OBJECTIVES[name]()(z_VND, projections=[1.0, 0.0, 0.0, 0.0])


def test_bad_target_samples_are_named():
    reg = RDMReg(TARGET, num_slices=8)
    with pytest.raises(ValueError, match="target_samples must have shape"):
        reg(torch.randn(2, 5, 4), target_samples=torch.randn(2, 5, 3))
    with pytest.raises(ValueError, match="target_samples contain"):
        reg(torch.randn(2, 5, 4), target_samples=torch.full((2, 5, 4), torch.nan))


def test_target_samples_may_be_shared_by_the_views():
    z_VND, y_MD = torch.randn(2, 5, 4), torch.rand(7, 4)
    for c in (None, F.normalize(torch.randn(6, 4), dim=1)):
        reg, same = RDMReg(TARGET, num_slices=8), RDMReg(TARGET, num_slices=8)
        shared = reg(z_VND, target_samples=y_MD, projections=c)
        assert shared == same(z_VND, target_samples=y_MD.expand(2, 7, 4), projections=c)


@every_objective
def test_copies_go_on_where_the_original_was(name):
    z_VND = torch.randn(2, 6, 4)
    criterion = OBJECTIVES[name]()
    criterion(z_VND)
    copies = [copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))]
    expected = criterion(z_VND)
    assert all(twin(z_VND) == expected for twin in copies)


def test_asking_for_more_eigenvectors_than_there_are():
    reg = RDMReg(TARGET, directions={"eigen": 7, "random": 3})
    with pytest.raises(ValueError, match="asks for 7 'eigen' directions"):
        reg(torch.randn(6, 10))


COMPILED = {
    **OBJECTIVES,
    "axes": lambda: RectifiedLpJEPA(TARGET, num_slices=16, axes_weight=0.1),
    "eigen": lambda: RDMReg(TARGET, num_slices=8, directions="eigen", target_ratio=1.5),
    "mixture": lambda: RDMReg(TARGET, directions={"axes": 2, "orthogonal": 7}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_in_one_graph(name):
    torch._dynamo.reset()
    criterion, compiled = COMPILED[name](), COMPILED[name]()
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        z = torch.randn(2, 8, 6, requires_grad=True)
        z_same = z.detach().clone().requires_grad_()
        expected, found = criterion(z), run(z_same)
        expected.backward()
        found.backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(z_same.grad, z.grad)
