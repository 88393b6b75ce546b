"""Recorded functions: what runs when, on which input, and what happens where recording fails."""

import pytest
import torch

from lpjepa.evaluation import ProbeJob, probe_protocol, probes, train_probes
from lpjepa.evaluation._graphs import Replayed, recorder_for


def test_every_call_is_made_once_with_its_own_input(tape):
    seen = []
    call = Replayed(lambda x: seen.append(x.clone()), tape)
    given = [torch.full((2 + i % 2,), float(i)) for i in range(7)]
    for x in given:
        call(x)
        x.fill_(-1.0)  # a recording keeps a copy of its input, not the input
    assert [x.tolist() for x in seen] == [[float(i)] * (2 + i % 2) for i in range(7)]
    assert tape.events == ["warm"] * 2 + ["record", "replay"] * 2 + ["replay"] * 3


def test_without_a_recorder_the_function_runs_as_it_is():
    assert recorder_for(torch.device("cpu")) is None
    seen = []
    x = torch.zeros(1)
    call = Replayed(seen.append, None)
    call(x)
    call(x)
    assert all(found is x for found in seen)
    assert len(seen) == 2


def test_where_recording_fails_the_function_runs_as_it_is_after_one_warning(tape, monkeypatch):
    def refuse(call):
        raise RuntimeError("operation not permitted when stream is capturing\ndetails")

    monkeypatch.setattr(tape, "record", refuse)
    seen = []
    call = Replayed(lambda x: seen.append(float(x)), tape)
    call(torch.tensor(1.0))
    with pytest.warns(UserWarning, match="one by one: operation not permitted when stream is capturing$"):
        call(torch.tensor(2.0))
    call(torch.tensor(3.0))
    assert seen == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("standardize", [False, True])
def test_recorded_probes_equal_probes_step_by_step(tape, monkeypatch, name, standardize):
    """83 samples in batches of 8, at most 4 a span: spans of 4, 4 and 3 steps, the last step smaller."""
    x, y = torch.randn(83, 6), torch.randint(0, 4, (83,))
    jobs = [ProbeJob(x, y, x, y, seed=1), ProbeJob(x.square(), y, x.square(), y, seed=2)]
    protocol = probe_protocol(name, epochs=4, batch_size=8, standardize=standardize)
    plain = train_probes(jobs, protocol)
    monkeypatch.setattr(probes, "recorder_for", lambda device: tape)
    monkeypatch.setattr(probes, "SPAN_STEPS", 4)
    recorded = train_probes(jobs, protocol)
    for a, b in zip(plain, recorded):
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-5, atol=1e-6)
        assert (a.predictions == b.predictions).all()
    # The first span of a shape is run, its second recorded: within the first epoch for the longer ones.
    assert tape.events.count("record") == 2
    assert tape.events.count("warm") + tape.events.count("replay") == 4 * 3


def test_spans_cover_an_epoch_in_whole_batches_of_few_shapes():
    for size in (1, 511, 512, 5_000, 50_000, 1_281_167):
        span = probes._span(size, 512, recorded=True)
        assert span % 512 == 0
        assert span <= 512 * probes.SPAN_STEPS
        spans = -(-size // span)
        assert spans == -(-size // (512 * probes.SPAN_STEPS))  # no more spans than needed
    assert probes._span(5_000, 512, recorded=False) == 512


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("standardize", [False, True])
def test_captured_probes_equal_probes_step_by_step_and_those_of_the_cpu(tape, monkeypatch, name, standardize):
    """Several spans an epoch, a smaller last batch, a changing rate; a failed capture is an error here."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5_000, 64, generator=generator)
    y = (x @ torch.randn(64, 10, generator=generator)).argmax(1)
    jobs = [ProbeJob(x[:4_000], y[:4_000], x[4_000:], y[4_000:], seed=seed) for seed in (1, 2)]
    protocol = probe_protocol(name, epochs=6, batch_size=96, standardize=standardize)
    captured = train_probes(jobs, protocol, "cuda")
    on_cpu = train_probes(jobs, protocol, "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(probes, "recorder_for", lambda device: tape)
        eager = train_probes(jobs, protocol, "cuda")
    for a, b, c in zip(captured, eager, on_cpu):
        torch.testing.assert_close(a.weight, b.weight, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.bias, b.bias, rtol=1e-5, atol=1e-5)
        assert a.top1 == b.top1
        assert a.top1 == pytest.approx(c.top1, abs=0.01)
        assert a.top1 > 0.6


def test_types_are_recorded_apart_and_recordings_are_few(tape):
    seen = []
    call = Replayed(lambda x: seen.append(x.clone()), tape)
    for x in (torch.ones(2, dtype=torch.uint8),) * 2 + (torch.full((2,), 0.5),) * 2:
        call(x)
    assert [x.sum().item() for x in seen] == [2, 2, 1.0, 1.0], "no value was cut to another's type"
    for size in range(3, 40):
        call(torch.ones(size))
        call(torch.ones(size))
    assert len(seen) == 4 + 2 * 37
    assert tape.events.count("record") == 4
