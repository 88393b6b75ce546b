"""The order of `docs/results.md`: chapters of recipes, what was asked first before what the paper has too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """A heading, a sentence or two on what follows, and the recipes."""

    title: str
    about: str
    recipes: tuple[str, ...]


GAP = "Does ℓ0 meet its target?"
TRANSFER = tuple(f"transfer-{n}-{kind}" for n in ("1", "10", "all") for kind in ("encoder", "projector"))
CHAPTERS = (
    Chapter(
        "CIFAR-100",
        "Accuracies are those of online probes, trained on the augmented views beside the encoder without "
        "changing it, as the authors' code reports them; the paper does not say which its table has. A "
        "*frozen probe* is fitted to the end on the features of the finished encoder with a weight decay of "
        "0.0001, one with a *chosen decay* with the best for held-out training images.",
        ("cifar100-mark", "cifar100", "cifar100-long", "accuracy-sparsity", "learning-rates",
         "dense-first"),
    ),
    Chapter(
        GAP,
        "ℓ0 is the fraction of features that are active; theory says what it is when every feature follows "
        "the target.",
        ("l0-gap", "controllable-sparsity", "exact-sparsity", "exact-sparsity-preset", "exact-sparsity-long",
         "diagram", "l0-sigma"),
    ),
    Chapter(
        "Sparsity and accuracy",
        "",
        ("necessity", "necessity-l1", "pareto", "pareto-l1", "l1-l0-correlation", "accuracy-sigma",
         "continuous-mapping"),
    ),
    Chapter(
        "Independence, directions, batches and cost",
        "",
        ("entropy", "nhsic", "eigenvectors", "projections", "batch-size", "projector-dim", "runtime"),
    ),
    Chapter(
        "In the place of ImageNet",
        "At the small scale CIFAR-100 stands in for ImageNet-100 and ImageNet-1K, and a ResNet-18 for the "
        "ResNet-50: rows keep their order if the claim is a general one, and no number is comparable.",
        ("imagenet100", "vit", "imagenet1k"),
    ),
    Chapter(
        "Transfer",
        "",
        (*TRANSFER, "adaptive-sparsity", "transfer-sparsity", "violins", "neighbours-plain",
         "neighbours-busy", "neighbours-crop", "attribution"),
    ),
    Chapter(
        "Mathematics",
        "Figures that need no training.",
        ("non-closure", "maximum-entropy", "densities", "variance-gn", "variance-rgn", "sigma-maps",
         "bisection"),
    ),
)  # fmt: skip
