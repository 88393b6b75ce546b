"""Probes against scikit-learn's logistic regression, torch's own training loop, and their edge cases."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from lpjepa.evaluation import ProbeJob, probe_protocol, train_probes


@pytest.fixture(scope="module")
def digits():
    """Digits as features: train and test, in [0, 1], every third sample for testing."""
    data = load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    test = torch.arange(len(x)) % 3 == 0
    return x[~test], y[~test], x[test], y[test]


@pytest.mark.parametrize(("name", "margin"), [("adam", 0.015), ("sgd", 0.04)])
def test_accuracy_is_that_of_logistic_regression(digits, name, margin):
    x, y, x_test, y_test = digits
    expected = LogisticRegression(C=100.0, max_iter=2000).fit(x, y).score(x_test, y_test)
    # The paper's batch of 512 makes 3 steps an epoch here; 64 comes closer to what SGD does on a real set.
    protocol = probe_protocol(name, batch_size=512 if name == "adam" else 64)
    (result,) = train_probes([ProbeJob(x, y, x_test, y_test)], protocol)
    assert result.top1 == pytest.approx(expected, abs=margin)
    assert result.top5 >= result.top1
    assert (result.predictions == y_test).float().mean().item() == pytest.approx(result.top1)
    again = (x_test @ result.weight + result.bias).argmax(1)
    assert (again == result.predictions).all()


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_training_equals_torchs_own_optimizer_step_for_step(name):
    """An independent loop with one nn.Linear, given the same start and the same order of samples."""
    x, y = torch.randn(37, 5), torch.randint(0, 3, (37,))
    protocol = probe_protocol(name, epochs=4, batch_size=16)
    (result,) = train_probes([ProbeJob(x, y, x, y, seed=11)], protocol)

    generator = torch.Generator().manual_seed(11)
    linear = torch.nn.Linear(5, 3)
    with torch.no_grad():
        linear.weight.copy_(((torch.rand(5, 3, generator=generator) * 2 - 1) / math.sqrt(5)).T)
        linear.bias.copy_(((torch.rand(1, 3, generator=generator) * 2 - 1) / math.sqrt(5))[0])
    if name == "adam":
        optimizer, schedule = torch.optim.Adam(linear.parameters(), lr=1e-2), None
    else:
        optimizer = torch.optim.SGD(linear.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-6)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(4):
        for batch in torch.randperm(37, generator=generator).split(16):
            optimizer.zero_grad()
            F.cross_entropy(linear(x[batch]), y[batch]).backward()
            optimizer.step()
        if schedule is not None:
            schedule.step()
    torch.testing.assert_close(result.weight, linear.weight.detach().T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.bias, linear.bias.detach(), rtol=1e-4, atol=1e-5)


def test_probes_trained_together_equal_probes_trained_alone(digits):
    x, y, x_test, y_test = digits
    protocol = probe_protocol("adam", epochs=5)
    draws = [torch.randperm(len(x))[:100] for _ in range(2)]
    jobs = [
        ProbeJob(x, y, x_test, y_test, draws[0], seed=1),
        ProbeJob(x.square(), y, x_test.square(), y_test, draws[1], seed=2),  # same shape: one group
        ProbeJob(x[:, :30], y, x_test[:, :30], y_test, draws[0], seed=3),  # other width
        ProbeJob(x, y, x_test, y_test, seed=4),  # other number of samples
    ]
    together = train_probes(jobs, protocol)
    for job, result in zip(jobs, together):
        (alone,) = train_probes([job], protocol)
        torch.testing.assert_close(result.weight, alone.weight, rtol=1e-4, atol=1e-5)
        assert result.top1 == pytest.approx(alone.top1, abs=0.005)
    (same,) = train_probes([jobs[0]], protocol)
    assert torch.equal(same.weight, train_probes([jobs[0]], protocol)[0].weight)


def test_standardisation_makes_the_probe_blind_to_scale_and_shift(digits):
    x, y, x_test, y_test = digits
    scale, shift = torch.rand(x.shape[1]) * 100 + 0.01, torch.randn(x.shape[1]) * 10
    protocol = probe_protocol("adam", epochs=5, standardize=True)
    moved = ProbeJob(x * scale + shift, y, x_test * scale + shift, y_test)
    plain, other = train_probes([ProbeJob(x, y, x_test, y_test), moved], protocol)
    assert other.top1 == pytest.approx(plain.top1, abs=0.01)
    assert ((x_test @ plain.weight + plain.bias).argmax(1) == plain.predictions).float().mean() > 0.99


def test_constant_and_all_zero_features_give_the_most_frequent_class():
    y = torch.tensor([0] * 30 + [1] * 10)
    for value in (0.0, 3.0):
        x = torch.full((40, 6), value)
        (result,) = train_probes([ProbeJob(x, y, x, y)], probe_protocol("adam"))
        assert result.top1 == pytest.approx(0.75)


def test_a_class_seen_in_one_split_only():
    x = torch.eye(3)
    (result,) = train_probes(
        [ProbeJob(x, torch.tensor([0, 0, 1]), x, torch.tensor([0, 2, 1]))], probe_protocol("adam")
    )
    assert result.weight.shape == (3, 3)
    assert result.top1 == pytest.approx(2 / 3)


def test_progress_counts_epochs_of_all_groups():
    x, y = torch.randn(8, 2), torch.arange(8) % 2
    seen = []
    jobs = [ProbeJob(x, y, x, y), ProbeJob(x, y, x, y, torch.arange(4))]
    train_probes(
        jobs, probe_protocol("adam", epochs=2), progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_bad_input_is_named():
    x, y = torch.randn(4, 2), torch.arange(4) % 2
    protocol = probe_protocol("adam")
    broken = x.clone()
    broken[1, 0] = torch.nan
    for job, message in [
        (ProbeJob(x[:0], y[:0], x, y), "train split is empty"),
        (ProbeJob(x, y, x[:0], y[:0]), "test split is empty"),
        (ProbeJob(broken, y, x, y), "train features of 1 of 4 samples are not finite"),
        (ProbeJob(x, y[:3], x, y), "do not fit together"),
        (ProbeJob(x, y, x[:, :1], y), "2 entries"),
        (ProbeJob(x, y - 1, x, y), "one is -1"),
        (ProbeJob(x, y, x, y, torch.arange(0)), "draw of labels is empty"),
    ]:
        with pytest.raises(ValueError, match=message):
            train_probes([job], protocol)
    with pytest.raises(ValueError, match="adam, sgd"):
        probe_protocol("lbfgs")
