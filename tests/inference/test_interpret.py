"""What features stand for: against definitions written out, and decisions that add up."""

import pytest
import torch

from lpjepa.inference.interpret import atlas, class_selectivity, explain, top_images


def test_top_images_are_the_largest_active_values():
    z = torch.tensor([[0.0, 3.0, 0.0], [2.0, 1.0, 0.0], [5.0, 0.0, 0.0]])
    found = top_images(z, 2)
    assert found.images_DK.tolist() == [[2, 1], [0, 1], [-1, -1]]
    assert found.values_DK.tolist() == [[5, 2], [3, 1], [0, 0]]
    assert top_images(z, 9).images_DK.shape == (3, 3)
    with pytest.raises(ValueError, match=r"\(N, D\)"):
        top_images(z[0])


def test_selectivity_by_its_definition():
    labels = torch.tensor([4, 4, 7, 7, 7, 9])
    z = torch.tensor(
        [
            # one class only, all alike, twice as much in class 9 as in the others, dead
            [1.0, 1.0, 1.0, 0.0],
            [3.0, 1.0, 1.0, 0.0],
            [0.0, 1.0, 1.0, 0.0],
            [0.0, 1.0, 1.0, 0.0],
            [0.0, 1.0, 1.0, 0.0],
            [0.0, 1.0, 2.0, 0.0],
        ]
    )
    found = class_selectivity(z, labels)
    assert found.index_D.tolist() == pytest.approx([1, 0, 1 / 3, 0])
    assert found.class_D.tolist()[0] == 4
    assert found.class_D.tolist()[2:] == [9, -1]
    assert found.share_D.tolist() == pytest.approx([1, 2 / 6, 1 / 6, 0])
    for bad, said in (((-z, labels), "non-negative"), ((z, labels[:3]), "fit"), ((z[:2], labels[:2]), "two")):
        with pytest.raises(ValueError, match=said):
            class_selectivity(*bad)


def test_contributions_add_up_to_the_score():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(20, generator=generator).relu()
    weight, bias = torch.randn(20, 5, generator=generator), torch.randn(5, generator=generator)
    logits = z @ weight + bias
    for k in (1, 4, 20):
        for wanted in (None, 2):
            found = explain(z, weight, bias, wanted, k)
            assert found.predicted == (int(logits.argmax()) if wanted is None else 2)
            assert found.score == pytest.approx(float(logits[found.predicted] - logits.mean()), abs=1e-4)
            total = found.bias + sum(part.amount for part in found.features) + found.rest
            assert total == pytest.approx(found.score, abs=1e-4)
            assert all(z[part.feature] == part.activation > 0 for part in found.features)
    assert found.rest == pytest.approx(0, abs=1e-5)
    # Taking the strongest supporting feature away lowers the score by what it contributed.
    strongest = max(found.features, key=lambda part: part.amount)
    without = z.clone()
    without[strongest.feature] = 0
    assert explain(without, weight, bias, 2).score == pytest.approx(found.score - strongest.amount, abs=1e-4)


def test_the_atlas_of_a_run(run_folder, model, digits):
    seen = atlas(run_folder, k=4, epochs=60, device="cpu")
    z = model.embed(digits.images)
    feature = seen.most_selective(1)[0]
    assert z[:, feature].argsort(descending=True)[:4].tolist() == seen.top.images_DK[feature].tolist()
    assert (
        seen.selectivity.index_D[feature] == seen.selectivity.index_D[(seen.top.images_DK >= 0).all(1)].max()
    )
    with pytest.raises(ValueError, match="no image 1000000: the 359 held-out images are 0 to 358"):
        seen.explain(10**6)
    explained = [seen.explain(row) for row in range(50)]
    right = sum(e.predicted == int(digits.labels[row]) for row, e in enumerate(explained))
    assert right > 12  # of 50; by chance 5, give or take 2
    assert explained[0].features[0].activation == pytest.approx(float(z[0, explained[0].features[0].feature]))
