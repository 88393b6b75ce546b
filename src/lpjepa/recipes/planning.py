"""Which trainings recipes need, which of these are to be done, and what goes on from what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lpjepa.recipes.cases import config_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Store
from lpjepa.recipes.workers import Job
from lpjepa.training.checkpoint import list_checkpoints
from lpjepa.training.config import identity
from lpjepa.training.fork import plain_until


def plan(
    recipes: Iterable[Recipe], scale: str, epochs: int | None = None, changes: Mapping[str, Any] | None = None
) -> list[Job]:
    """The trainings of `recipes`, each once: a recipe's first seed before its second.

    The pieces of a training are those that any recipe wants, also one that is not run now: its checkpoint may
    be gone by then.
    """
    jobs: dict[str, Job] = {}
    for recipe in recipes:
        length = recipe.epochs_at(scale) if epochs is None else epochs
        names = [case.label for case in recipe.cases(scale)]
        for seed in recipe.seeds_at(scale):
            for case in recipe.cases(scale):
                config = config_of(case, scale, seed, length, changes)
                about = f"{recipe.name}, {config.train.epochs} epochs, {identity(config)}"
                group = f", {case.group}," if names.count(case.label) > 1 and case.group else ""
                label = f"{case.label}{group} seed {seed} ({about})"
                job = jobs.setdefault(identity(config), Job(config, label))
                job.rows.add(f"{case.group} {case.label}")
                job.alone |= recipe.alone
    for recipe in catalog().values():
        if recipe.pieces:
            seed = recipe.seeds_at(scale)[0]
            length = recipe.epochs_at(scale) if epochs is None else epochs
            for case in recipe.cases(scale):
                key = identity(config_of(case, scale, seed, length, changes))
                if key in jobs:
                    jobs[key].pieces = tuple(dict.fromkeys([*jobs[key].pieces, *recipe.pieces]))
    for job in jobs.values():
        plain, share = plain_until(job.config)
        if share and identity(plain) in jobs:
            first = jobs[identity(plain)]
            first.keep_at = tuple(sorted({*first.keep_at, share}))
    return list(jobs.values())


def outstanding(jobs: Sequence[Job], places: Places, again: bool = False) -> tuple[list[Job], list[Job]]:
    """The jobs that are not done, those with a checkpoint first, and those that could not be completed.

    The latter have a result that lacks pieces, and no checkpoint to take them from: they count as done unless
    they are to be trained `again`. Those that lack their time, where that is what is shown, are not done.
    """
    from lpjepa.recipes.one_run import untimed
    from lpjepa.recipes.pieces import missing_pieces

    store = Store(places.results, places.scale)
    started, fresh, incomplete = [], [], []
    for job in jobs:
        result = store.get(job.config)
        if result is not None and not missing_pieces(result, job.pieces, places) and not untimed(job, result):
            continue
        if list_checkpoints(places.checkpoints(job.config)):
            started.append(job)
        elif result is None or again or untimed(job, result):
            fresh.append(job)
        else:
            incomplete.append(job)
    return started + fresh, incomplete


def with_beginnings(jobs: Sequence[Job], places: Places) -> list[Job]:
    """The jobs, and what several of them are at first, before these, where it is not among them.

    That training may have its result since long, and no checkpoint any more: to do it once again costs less
    than to do it as a part of each. One that is under way is gone on with for a single job, too.
    """
    from lpjepa.recipes.one_run import is_finished, shared_checkpoint

    known, after = {identity(job.config): job for job in jobs}, defaultdict[str, list[Job]](list)
    under_way: set[str] = set()
    for job in jobs:
        before, share = plain_until(job.config)
        saved = list_checkpoints(places.checkpoints(job.config)) or shared_checkpoint(job.config, places)
        if share == 0 or saved or job.alone:
            continue
        if planned := known.get(identity(before)):
            planned.keep_at = tuple(sorted({*planned.keep_at, share}))
            continue
        after[identity(before)].append(job)
        if list_checkpoints(places.checkpoints(before)) and not is_finished(places.run_folder(before)):
            under_way.add(identity(before))
    several = [late for key, late in after.items() if len(late) > 1 or key in under_way]
    first = {late[0].label: _beginning(late) for late in several}
    found = [one for job in jobs for one in (first.get(job.label), job) if one is not None]
    return with_beginnings(found, places) if first else found


def _beginning(late: Sequence[Job]) -> Job:
    before = plain_until(late[0].config)[0]
    about = f"seed {before.train.seed}, {before.train.epochs} epochs, {identity(before)}"
    shares = {plain_until(job.config)[1] for job in late}
    label = f"what {len(late)} training{'s are' if len(late) > 1 else ' is'} at first ({about})"
    return Job(before, label, keep_at=tuple(sorted(shares)), for_others=True)


def chains(jobs: Sequence[Job], places: Places) -> list[list[Job]]:
    """The jobs, each followed by those that go on from it and have no checkpoint of their own yet.

    Others may go on from these: one is rectified late, and another is that and has its share set at the end.
    What is nearest to its end comes first: where time runs out, what is left costs the least anew.
    """
    known = {identity(job.config): job for job in jobs}
    first, following = [], {own: [] for own in known}  # type: ignore[var-annotated]
    shares: dict[str, float] = {}
    for own, job in known.items():
        plain, shares[own] = plain_until(job.config)
        before = identity(plain)
        late = own != before and not list_checkpoints(places.checkpoints(job.config))
        (following[before] if late and before in known else first).append(own)

    def chain(own: str) -> list[Job]:
        late = sorted(following[own], key=shares.__getitem__, reverse=True)
        return [known[own], *(job for after in late for job in chain(after))]

    return [chain(own) for own in first]
