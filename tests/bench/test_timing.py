"""Interleaving, medians and memory: what does not depend on the machine's speed."""

from contextlib import contextmanager

import pytest
import torch

from lpjepa.bench import timing
from lpjepa.bench.table import Column, markdown, number, spread, text
from lpjepa.bench.timing import Timing, captured, interleaved, peak_megabytes

CPU = torch.device("cpu")


def test_calls_take_turns_and_the_order_turns_round(monkeypatch):
    monkeypatch.setattr(timing, "_repeats", lambda call, device: 1)
    seen = []
    found = interleaved({name: lambda n=name: seen.append(n) for name in "abc"}, CPU, rounds=3)
    assert "".join(seen) == "abccbaabc"
    assert [len(found[name].rounds) for name in "abc"] == [3, 3, 3]


def test_short_calls_are_repeated_and_long_ones_are_not(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 1.0)  # each look is a second later
    calls = []
    interleaved({"long": lambda: calls.append(1)}, CPU, rounds=2)
    assert len(calls) == 2 + 2  # two to find out, one a round
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 1e-6)
    calls.clear()
    interleaved({"short": lambda: calls.append(1)}, CPU, rounds=1)
    assert len(calls) == 2 + 1 + timing.REPEATS["cpu"][1]


def test_steps_of_a_gpu_are_timed_in_a_row_however_long(monkeypatch):
    """A step makes its views while the one before it learns; alone, it would wait for them."""
    monkeypatch.setattr(timing, "synchronize", lambda device: None)
    clock = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) * 1.0)
    assert timing._repeats(lambda: None, torch.device("cuda")) >= 4
    assert timing._repeats(lambda: None, CPU) == 1


def test_median_and_quartiles():
    found = Timing((4.0, 1.0, 3.0, 2.0, 100.0), 7.0)
    assert (found.ms, found.quartiles) == (3.0, (2.0, 4.0))
    assert found.as_dict() == {"ms": 3.0, "low": 2.0, "high": 4.0, "rounds": 5, "peak_MB": 7.0}
    assert Timing((5.0,)).quartiles == (5.0, 5.0)
    with pytest.raises(ValueError, match="--rounds"):
        interleaved({}, CPU, 0)


def test_a_call_warms_up_on_the_stream_that_records_it(monkeypatch):
    """The order of waits, by a stand-in for CUDA that notes what happens on which stream."""
    events, current = [], ["main"]

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            events.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on(stream):
        before, current[0] = current[0], stream.name
        yield
        current[0] = before

    @contextmanager
    def graph(graph, stream, capture_error_mode):
        events.append("begin")
        with on(stream):
            yield
        events.append("end")

    class Graph:
        def replay(self):
            events.append("replay")

    stand_in = {
        "Stream": lambda device: Stream("side"),
        "current_stream": lambda device=None: Stream(current[0]),
        "stream": on,
        "device": lambda device: on(Stream(current[0])),
        "graph": graph,
        "CUDAGraph": Graph,
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    replay = captured(lambda: events.append(f"call on {current[0]}"), torch.device("cuda"))
    warm = ["side waits for main", *["call on side"] * timing.WARM_CALLS, "main waits for side"]
    assert events == [*warm, "begin", "call on side", "end"]
    assert current == ["main"]
    replay()
    assert events[-1] == "replay"


@pytest.mark.gpu
def test_a_captured_call_is_replayed():
    x = torch.zeros(3, device="cuda")
    replay = captured(lambda: x.add_(1), x.device)
    assert x.tolist() == [timing.WARM_CALLS] * 3  # a recording executes nothing
    replay()
    replay()
    assert x.tolist() == [timing.WARM_CALLS + 2] * 3


@pytest.mark.parametrize("megabytes", [40, 160])
def test_peak_memory_is_that_of_the_call(megabytes):
    peak = peak_megabytes(lambda: torch.ones(megabytes * 250_000), CPU)
    if peak is None:
        pytest.skip("this system does not tell")
    assert peak == pytest.approx(megabytes, rel=0.1)


def test_a_table_is_markdown_with_aligned_columns():
    columns = (
        text("name", "name"),
        number("ms", "ms", ".1f"),
        spread("range", "a", "b"),
        Column("x", lambda row: "y"),
    )
    lines = markdown(columns, [{"name": "long name", "ms": 1.25, "a": 1, "b": 2}, {"name": "b", "ms": None}])
    assert lines.splitlines() == [
        "| name      |  ms |  range | x |",
        "|-----------|----:|-------:|--:|",
        "| long name | 1.2 | 1 to 2 | y |",
        "| b         |     |        | y |",
    ]
