"""The recipes as data: none of the paper's tables and figures is missing, and every training can be built."""

import dataclasses
import re
from pathlib import Path

import pytest

from lpjepa.recipes import catalog, plan, select
from lpjepa.recipes.cases import SCALES, config_of
from lpjepa.recipes.plots.mathematics import FUNCTIONS
from lpjepa.recipes.sound import check_recipe
from lpjepa.recipes.values import number
from lpjepa.training import load_config
from lpjepa.training.config import FREE_KEYS, differing_keys, identity
from lpjepa.training.fork import plain_until
from lpjepa.training.layers import replace

# Every \label{tab:...} and \label{fig:...} of the paper, main text and appendix.
PAPER = [
    "tab:imagenet100-table",
    "tab:imagenet1k-table",
    "tab:rdmreg-batch-size",
    "tab:sigreg-rdmreg-runtime",
    "tab:cifar100-table",
    "tab:1shot-encoder-probe",
    "tab:1shot-projector-probe",
    "tab:10shot-encoder-probe",
    "tab:10shot-projector-probe",
    "tab:allshot-encoder-probe",
    "tab:allshot-projector-probe",
    "tab:projector-dim-ablation",
    "tab:rpl_msv_sweep_vit",
    "fig:totalttt",
    "fig:ttt1",
    "fig:ttt2",
    "fig:maxent-l1-l2",
    "fig:TBD1fig",
    "fig:fourquadrantssubfig1",
    "fig:controllablesparsitysubfig2",
    "fig:paretofrontieraccandsparsesubfig3",
    "fig:TBD2fig",
    "fig:ddimentsubfig1",
    "fig:hsicsubfig2",
    "fig:sparsityoodsubfig3",
    "fig:pdf_comparison_total",
    "fig:pdf_comparison_1",
    "fig:pdf_comparison_2",
    "fig:pdf_comparison_3",
    "fig:variance_ggn_relu_combined",
    "fig:empvarbeforerelu",
    "fig:thmvarbeforerelu",
    "fig:empvarafterrelu",
    "fig:thmvarafterrelu",
    "fig:variance_ggn_relu_combined_choice_2",
    "fig:empvarbeforerelu_choice_2",
    "fig:thmvarbeforerelu_choice_2",
    "fig:empvarafterrelu_choice_2",
    "fig:thmvarafterrelu_choice_2",
    "fig:sigma_maps_different_choices",
    "fig:sigma_map_choices_1",
    "fig:sigma_map_choices_22",
    "fig:l0normwithdiffsigmachoices",
    "fig:theo_l0_norm_fig",
    "fig:l0_sigma_choices_1",
    "fig:l0_sigma_choices_2",
    "fig:acc_vs_sparsity_diff_sigma_options",
    "fig:acc_vs_mu",
    "fig:acc_vs_l1",
    "fig:acc_vs_l0",
    "fig:subfig_bisect_rate",
    "fig:contmaptheoremfig",
    "fig:fourorthantsl1l2plot",
    "fig:additionalmiscresultdumpfig",
    "fig:l0_transfer_sparsity",
    "fig:l1_transfer_sparsity",
    "fig:total_transfer_sparsity",
    "fig:additionalparetofrontier",
    "fig:correlationbetweendiffmetrics",
    "fig:samplefficiencyofrandproj",
    "fig:total_tbddd",
    "fig:eigen_1",
    "fig:eigen_2",
    "fig:eigen_3",
    "fig:eigen_4",
    "fig:eigen_5",
    "fig:eigen_6",
    "fig:eigen_7",
    "fig:eigen_8",
    "fig:eigen_9",
    "fig:total_eigen",
    "fig:qual_pirate_ship",
    "fig:qual_tabby_cat",
    "fig:qual_probe_cat",
    "fig:qual_attribution",
    "fig:transfer_sparsity",
]


def test_every_label_of_the_paper_has_one_recipe() -> None:
    labels = [label for recipe in catalog().values() for label in recipe.label]
    assert sorted(labels) == sorted(PAPER)


def test_data_names_only_what_exists() -> None:
    for recipe in catalog().values():
        check_recipe(recipe)
        assert (recipe.kind == "table") == bool(recipe.columns)
        assert (recipe.kind == "figure") == bool(recipe.panels)
        for panel in recipe.panels:
            assert panel.get("function", "densities") in FUNCTIONS
        for claim in recipe.claims:
            assert claim["claim"].endswith(".")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": [{"method": "lejpea"}]}, "there is no method 'lejpea'; did you mean lejepa?"),
        ({"base": "cifar1000"}, "there is no base 'cifar1000'; did you mean cifar100?"),
        ({"columns": ["l0_theroy"]}, "there is no column 'l0_theroy'; did you mean l0_theory?"),
        ({"pieces": ["transfers"]}, "there is no piece 'transfers'; did you mean transfer?"),
        ({"panels": [{"plot": "pie chart"}]}, "there is no plot 'pie chart'; there are "),
        (
            {"claims": [{"tests": [{"kind": "ordr"}]}]},
            "there is no kind of claim 'ordr'; did you mean order?",
        ),
        (
            {"claims": [{"tests": [{"kind": "order", "column": "l0", "lower": {"p": 7}}]}]},
            "a claim is about a row {'p': 7}, and there is none",
        ),
    ],
)
def test_mistakes_in_a_recipe_are_one_sentence(change: dict, sentence: str) -> None:
    recipe = dataclasses.replace(catalog()["cifar100"], **change)
    with pytest.raises(ValueError, match=re.escape(f"recipe tables/cifar100.yaml: {sentence}")):
        check_recipe(recipe)


@pytest.mark.parametrize("scale", SCALES)
def test_every_training_can_be_built_and_shared(scale: str) -> None:
    jobs = plan(catalog().values(), scale)
    assert len({identity(job.config) for job in jobs}) == len(jobs)
    wanted = sum(len(r.cases(scale)) * len(r.seeds_at(scale)) for r in catalog().values())
    assert len(jobs) < wanted / 2, "recipes share their trainings"


def test_published_rows_have_a_value_for_each_column() -> None:
    for recipe in catalog().values():
        for case in recipe.cases("paper"):
            if case.paper:
                assert len(case.paper) == len(recipe.paper_columns()), (recipe.name, case.label)


def test_published_averages_are_those_of_their_rows() -> None:
    """An independent check of the copied numbers: avg. is the mean of six data sets, to the last digit."""
    checked = 0
    for name, recipe in catalog().items():
        if name.startswith("transfer-") and recipe.kind == "table":
            for case in recipe.cases("paper"):
                *values, mean = (number(value) for value in case.paper)
                assert sum(values) / 6 == pytest.approx(mean, abs=0.0101), (name, case.label)
                checked += 1
    assert checked == 6 * 13


def test_the_numbers_that_the_project_is_held_to() -> None:
    rows = {case.label: case.paper for case in catalog()["cifar100"].cases("paper")}
    assert len(rows) == 12
    assert rows["RGN_1.0(0, σ_GN)"] == (65.97, 62.22, 0.3019, 0.6474)
    assert rows["RGN_1.0(-2, σ_GN)"] == (64.75, 59.08, 0.0236, 0.0489)
    assert rows["LeJEPA"][:2] == (65.65, 62.69)
    assert rows["NCL-ReLU"] == (66.23, 61.88, 0.0228, 0.0503)
    assert rows["VICReg"][:2] == (63.78, 58.82)


def test_a_case_is_its_config() -> None:
    recipe = catalog()["exact-sparsity"]
    cases = {(c.group, c["mu"]): c for c in recipe.cases("small")}
    config = config_of(cases["axes weight 0.3", -2], "small", seed=5)
    assert (config.loss.axes_weight, config.target.mu, config.target.active) == (0.3, -2.0, None)
    assert (config.train.epochs, config.train.seed, config.data.source) == (100, 5, "cifar100")
    assert config_of(cases["axes weight 0.3", -2], "small", 5, epochs=55).train.epochs == 55
    # A row that states its own epochs keeps them, and the row without axes is that of the sparsity figure.
    long = catalog()["cifar100-long"].cases("small")[0]
    assert config_of(long, "small", 5, epochs=55).train.epochs == 1000
    shared = [c for c in catalog()["controllable-sparsity"].cases("small") if c["mu"] == -2 and c["p"] == 1.0]
    assert identity(config_of(shared[0], "small", 5)) == identity(
        config_of(cases["plain loss", -2], "small", 5)
    )


def test_lengths_of_a_recipe_and_of_a_command_live_side_by_side() -> None:
    lengths = lambda names, epochs=None: {
        job.config.train.epochs for job in plan(select(names), "small", epochs)
    }
    assert lengths(["cifar100"]) == {100}
    assert lengths(["pareto"]) == {30}
    assert lengths(["pareto", "cifar100"], 20) == {20}
    assert lengths(["cifar100-mark", "cifar100-long"], 20) == {55, 1000}, "rows keep their own"
    keys = [identity(job.config) for e in (20, 55, 100) for job in plan(select(["cifar100"]), "small", e)]
    assert len(set(keys)) == 3 * 24


def test_the_exact_preset_trains_dense_and_sets_its_share_at_the_end() -> None:
    exact, plain = (load_config(f"presets:cifar100{end}") for end in ("-exact-sparsity", ""))
    staying = ["target.from_mu", "target.leaves_at", "target.there_at"]
    assert differing_keys(exact, plain) == ["model.activation", *staying, "train.calibrate_from"]
    before, share = plain_until(exact)
    assert share == 1
    assert before == replace(plain, {"target": {"mu": 1.0}})
    cases = catalog()["exact-sparsity-preset"].cases("small")
    groups = ["plain loss", "thresholds in the last tenth", "thresholds at the end"]
    expected = {(g, mu) for g in [*groups, "presets:cifar100-exact-sparsity"] for mu in (-3, -2, -1, 0, 1)}
    expected |= {("largest features at the end", mu) for mu in (-3, -2, -1)}
    assert {(c.group, c["mu"]) for c in cases} == expected
    shares = {config_of(case, "small", 5).train.calibrate_from for case in cases}
    assert shares == {0.0, 0.9, exact.train.calibrate_from}


def test_the_preset_is_the_row_of_the_study_that_found_it() -> None:
    of = lambda recipe, group: {
        identity(config_of(case, "small", 5)): case["mu"]
        for case in catalog()[recipe].cases("small")
        if case.group == group
    }
    given = load_config("presets:cifar100-exact-sparsity")
    for scale in ("smoke", "small", "paper"):
        rows = [
            case for case in catalog()["exact-sparsity-preset"].cases(scale) if case.group[:8] == "presets:"
        ]
        for config in [config_of(case, scale, 5) for case in rows]:
            assert config.model.activation == given.model.activation
            assert plain_until(config)[1] == plain_until(given)[1]
    preset = of("exact-sparsity-preset", "presets:cifar100-exact-sparsity")
    study = of("dense-first", "the location stays until the end, largest features less the next")
    assert study.items() <= preset.items()
    assert [mu for key, mu in preset.items() if key not in study] == [1]


def test_rows_set_no_key_that_identity_ignores() -> None:
    for recipe in catalog().values():
        for case in recipe.cases("small"):
            assert not set(case.values) & set(FREE_KEYS)


def test_an_unknown_name_is_one_sentence_with_the_nearest() -> None:
    assert [recipe.name for recipe in select(["tab:cifar100-table", "fig:acc_vs_l0"])] == [
        "cifar100",
        "accuracy-sigma",
    ]
    with pytest.raises(ValueError, match=r"there is no recipe 'cifar10'; did you mean cifar100\?"):
        select(["cifar10"])
    assert {recipe.kind for recipe in select(["tables"])} == {"table"}
    assert len(select(["all", "cifar100"])) == len(catalog())


def test_at_the_papers_scale_rates_are_the_papers() -> None:
    """LARS with 0.0825 and 0.0275 at batch 128 for all methods; on CIFAR-100 the authors' own config."""
    for case in catalog()["imagenet100"].cases("paper"):
        config = config_of(case, "paper", 5)
        rates = [rate * config.train.batch_size / 256 for rate in (config.optim.lr, config.optim.probe_lr)]
        assert rates == pytest.approx([0.0825, 0.0275]), case.label
    config = config_of(catalog()["cifar100"].cases("paper")[0], "paper", 5)
    assert (config.optim.lr, config.optim.probe_lr, config.train.epochs) == (0.03, 0.01, 1000)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_published_results_are_wanted(scale: str) -> None:
    """A change of config, preset or method that made them another training would leave them unused."""
    folder = Path(__file__).parents[2] / "results" / scale
    wanted = {identity(job.config) for job in plan(catalog().values(), scale)}
    assert {path.stem for path in folder.glob("*.json")} <= wanted
