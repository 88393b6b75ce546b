"""The cost model against what can be said of it without a machine."""

import pytest

from lpjepa.bench.cost import WORLDS, Machine, Setting, cost, messages, model


def test_work_falls_as_one_over_w_with_a_fixed_global_batch():
    rows = model(Setting(4096, "global"), Machine())
    assert [row["world"] for row in rows] == list(WORLDS) == [2**i for i in range(11)]
    for row in rows:
        for key in ("projection_gflop", "gradient_gflop", "sorted_M"):
            assert row[key] == pytest.approx(rows[0][key] / row["world"])
        assert row["global_batch"] == 4096


def test_with_a_fixed_batch_a_gpu_work_stays_and_bytes_grow():
    one, *more = model(Setting(256, "gpu"), Machine())
    for row in more:
        assert row["projection_gflop"] == pytest.approx(one["projection_gflop"])
        assert row["gathered"] == 256 * row["world"] * 2 * 512 * 2
        assert row["scattered"] == 2 * row["gathered"]  # float32 gradients of 16-bit features
    assert one["gathered"] == one["link_ms"] == 0


def test_the_parts_add_up_and_scale_with_the_machine():
    setting = Setting(256, "gpu", dim=2048)
    row = cost(setting, Machine(), 8)
    parts = [row[key] for key in ("products_ms", "sort_ms", "draw_ms", "link_ms")]
    assert row["loss_ms"] == pytest.approx(sum(parts))
    assert row["share"] == pytest.approx(row["loss_ms"] / (row["loss_ms"] + 256 * setting.image_us * 1e-3))
    faster = cost(setting, Machine(tflops=1000, merge_ps=6, draw_ps=1.65, link_GBps=1e9, latency_us=5), 8)
    for key in ("products_ms", "sort_ms", "draw_ms"):
        assert faster[key] == pytest.approx(row[key] / 2)
    # Products at 256, 2048, 8192 on one GPU: four projections of 2·N·D·K operations, two gradients.
    alone = cost(setting, Machine(), 1)
    assert alone["products_ms"] == pytest.approx(6 * 2 * 256 * 2048 * 8192 / 500e12 * 1e3)


def test_rings_send_all_but_their_own_part():
    sent = messages(Setting(8, "gpu", dim=16), 4)
    assert sent.link_bytes(4) == 3 / 4 * (sent.gathered + sent.scattered + 2 * 12)
    # An uneven division: padded to the largest share.
    assert messages(Setting(10, "global", dim=1, feature_bytes=4), 4).gathered == 4 * 2 * 3 * 4
