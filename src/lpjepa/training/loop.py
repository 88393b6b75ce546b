"""The training loop: `run = pretrain(config)`.

The order of things within a step is what makes a killed run continue bit for bit: step, then log, then
(at the end of an epoch) measure, then save. Whatever lies after the last checkpoint is dropped from the
journal and done again, the same way.
"""

from __future__ import annotations

import gc
import os
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lpjepa.training import checkpoint, circumstances, state
from lpjepa.training._typed import ConfigError, to_dict
from lpjepa.training.assembly import Assembly, StepInput, assemble
from lpjepa.training.config import Config, activation_of, check, default_folder
from lpjepa.training.display import Display, build_display
from lpjepa.training.fork import rectified_state
from lpjepa.training.health import Diverged
from lpjepa.training.interruption import Interrupted, StopRequest, stop_requests
from lpjepa.training.journal import Journal, build_sinks
from lpjepa.training.layers import replace
from lpjepa.training.opening import prepare
from lpjepa.training.processes import any_rank, from_first_rank, join_group, mean_over_ranks, pick_device
from lpjepa.training.run import Run
from lpjepa.training.schedule import step_at, warmup_cosine


def pretrain(config: Config, display: Display | None = None) -> Run:
    """Train what `config` says and return the run; continues the run in its folder if there is one."""
    config = circumstances.with_absolute_root(check(config))
    folder = Path(config.train.out) if config.train.out is not None else default_folder(config)
    keep = config.train.resume
    # What is saved resumes, so that the command which Ctrl-C prints never replaces the run it means.
    config = replace(config, {"train": {"out": str(folder), "resume": True}})
    device = pick_device(config.train.device)
    rank, world = join_group(device)
    with stop_requests() as stop:
        run = Run(folder, config)
        new = [place for place in (folder, *folder.parents) if not place.exists()]
        saved = from_first_rank(prepare(run, keep) if rank == 0 else None)
        display = display or build_display(config.log.plain, quiet=rank > 0)
        if saved == "finished":
            lost = "" if checkpoint.list_checkpoints(run.checkpoints) else ", but its checkpoints are gone"
            display.say(f"{folder} is finished{lost}; --train.no-resume trains it anew")
            return run
        try:
            content = checkpoint.load_newest(run.checkpoints) if saved == "resume" else None
            progress = {} if content is None else content["progress"]
            assembly = assemble(
                config, device, rank, world, progress.get("step", 0), turned=progress.get("turned", False)
            )
            sinks = build_sinks(config.log, folder, to_dict(config)) if rank == 0 else []
        except Exception:
            for place in new if rank == 0 else []:
                with suppress(OSError):
                    place.rmdir()  # nothing came of it
            raise
        if rank == 0 and saved == "fresh":
            run.save_config()
        journal = Journal(folder / "metrics.jsonl", sinks)
        trainer = Trainer(run, assembly, journal, display, stop, rank, world)
        del assembly  # which the trainer lets go of when it builds the next one
        try:
            trainer.begin(content)
            del content  # several times the weights
            trainer.train()
        finally:
            display.close()
            journal.close()
        if stop:  # it came after the last step, and is handed on
            again = trainer.resume_command()
            display.say(f"{folder} is finished and saved; for its table and report: {again}")
    return run


class Trainer:
    """One training from where it stands to its end."""

    def __init__(
        self,
        run: Run,
        parts: Assembly,
        journal: Journal,
        display: Display,
        stop: StopRequest,
        rank: int,
        world: int,
    ):
        self.run, self.parts, self.journal, self.display, self.stop = run, parts, journal, display, stop
        self.rank, self.world, self.config = rank, world, run.config
        self.step_now = 0
        self.steps_summed = 0
        self.latest: dict[str, Any] = {}
        self.silent = False
        self.circumstances = circumstances.describe(parts.train, world) if rank == 0 else {}
        train = self.config.train
        self.total = train.epochs * parts.steps_per_epoch
        self.rectify_at = step_at(train.rectify_from, self.total)
        self.kept_steps = {share: step_at(share, self.total) for share in train.keep_at}
        self.save_every = max(1, round(train.checkpoint_every * parts.steps_per_epoch))

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Stand at the first step, or where a saved state stands."""
        if self.rank == 0:
            size = state.state_bytes(self.parts.step)
            checkpoint.check_room(self.run.folder, size, len(self.kept_steps))
        if saved is not None:
            self._resume(saved)
        elif self.rank == 0:
            self.journal.keep_until(-1)
        self.display.say(
            f"{self.run.folder}: {self.parts.describe()}"
            + (f", rectified from step {self.rectify_at}" if self.rectify_at else "")
            + (f", resumed at step {self.step_now}" if saved is not None else "")
        )
        for share, step in self.kept_steps.items():
            if step <= self.step_now and not (self.run.checkpoints / checkpoint.kept_name(share)).is_file():
                self.display.say(f"train.keep_at {share:g}: step {step} is past, no checkpoint is kept there")
        if advice := self.parts.advice(self.world):
            self.display.say(advice)

    def train(self) -> None:
        self.display.start(self.step_now, self.total)
        self._clock = (time.monotonic(), self.step_now)
        while self.step_now < self.total:
            before = self.step_now
            self._epoch(before // self.parts.steps_per_epoch)
            assert self.step_now > before, "an epoch without batches"
        self._finish()

    def _epoch(self, epoch: int) -> None:
        """The rest of an epoch; up to where features are rectified, if that is in it."""
        length, log = self.parts.steps_per_epoch, self.config.log
        first = self.step_now - epoch * length
        batches = self.parts.batches(epoch, first)
        for batch in batches:
            self._step(batch)
            ends, turns = self.step_now == (epoch + 1) * length, self.step_now == self.rectify_at
            if self.step_now % log.every == 0 or ends:
                speed = self._log()
                if ends and ((epoch + 1) % log.monitor_every == 0 or self.step_now == self.total):
                    self._monitor(speed)
                else:
                    self.display.advance(self.step_now, self.step_now / length, speed, self.latest)
            if turns:  # measured as it was until now, saved as it is from now on
                self._stop_if_diverged()
                batches.close()  # it holds the parts before
                self.display.say(f"step {self.step_now}: features and target are rectified from here on")
                self._rectify()
            # Every process must take the same way here, so many agree only where they wait anyway.
            asked = (
                bool(self.stop)
                if self.world == 1
                else (self.step_now % log.every == 0 and any_rank(bool(self.stop)))
            )
            for share in [share for share, step in self.kept_steps.items() if step == self.step_now]:
                self._save(checkpoint.kept_name(share))
            if asked or (ends and self.step_now == self.total) or self.step_now % self.save_every == 0:
                self._save()
            if asked and self.step_now < self.total:
                raise Interrupted(
                    f"stopped at step {self.step_now} of {self.total} and saved; "
                    f"go on with: {self.resume_command()}",
                    self.stop.signal_number or 15,
                )
            if turns:
                return

    def _rectify(self) -> None:
        """Go on with features and target rectified: other parts, the same weights."""
        began, content = time.monotonic(), self._state()
        device, images = self.parts.device, (self.parts.train, self.parts.val)
        if self.parts.compiling is not None:
            self.parts.compiling.join()  # it would still be at work when the next step is captured
        del self.parts  # with its CUDA graphs, before there are others
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self.parts = assemble(self.config, device, self.rank, self.world, self.step_now, images)
        state.restore(self.parts.step, rectified_state(content, self.config))
        # Time spent building is not time spent training.
        self._clock = (self._clock[0] + time.monotonic() - began, self._clock[1])

    def _step(self, batch: StepInput) -> None:
        parts, optim = self.parts, self.config.optim
        warmup = round(optim.warmup_epochs * parts.steps_per_epoch)
        rates = [
            warmup_cosine(self.step_now, self.total, warmup, peak, optim.warmup_start, optim.final_lr)
            for peak in parts.rates
        ]
        parts.run_step.control(self.step_now, rates)
        parts.aim(self.step_now / self.total)
        try:
            parts.run_step(*batch, parts.seeds(self.step_now))
        except ValueError:
            # On the CPU a loss refuses NaN features by itself; say where they came from.
            self._stop_if_diverged()
            raise
        self.step_now += 1
        self.steps_summed += 1
        self.display.advance(self.step_now, self.step_now / parts.steps_per_epoch, None, self.latest)

    def _log(self) -> float:
        """Writes the means since the last line, and gives the images a second."""
        step, config = self.parts.step, self.config
        means = mean_over_ranks(step.metric_sums) / max(1, self.steps_summed)
        values = dict(zip(step.metric_names, means.tolist()))
        step.metric_sums.zero_()
        self.steps_summed = 0
        self._stop_if_diverged()
        now = time.monotonic()
        images = (
            (self.step_now - self._clock[1]) * config.train.batch_size * config.optim.accumulate * self.world
        )
        speed = images / max(1e-9, now - self._clock[0])
        self._clock = (now, self.step_now)
        rate = float(step.optimizers[0].param_groups[0]["lr"])
        self.latest |= {k: values[k] for k in ("loss",) if k in values}
        epoch = self.step_now / self.parts.steps_per_epoch
        if self.rank == 0:
            self.journal.write(
                "train", self.step_now, epoch, {**values, "lr": rate, "images_per_second": speed}
            )
        return speed

    def _monitor(self, speed: float) -> None:
        values = self.parts.monitor() | self._broken()
        self.latest |= values | {"on_its_way": self.parts.on_its_way}
        epoch = self.step_now / self.parts.steps_per_epoch
        if self.rank == 0:
            self.journal.write("epoch", self.step_now, epoch, values)
        self.display.epoch(epoch, speed, self.latest)
        self._say_if_silent(values)
        # Time spent measuring is not time spent training.
        self._clock = (time.monotonic(), self.step_now)

    def _say_if_silent(self, values: dict[str, Any]) -> None:
        """Say, when it begins, that no feature is active: a rectified training rarely comes back from it."""
        if values["l0"] == 0 and not self.silent:
            sparse = self.config.loss.method == "rectified_lpjepa"
            stuck = "" if activation_of(self.config) == "rep_relu" else ", and such features get no gradient"
            remedies = (
                "a denser target, a lower optim.lr or model.activation top" if sparse else "a lower optim.lr"
            )
            self.display.say(
                f"step {self.step_now}: no feature is active on any image measured{stuck}; "
                f"{remedies} may help"
            )
        self.silent = values["l0"] == 0

    def _stop_if_diverged(self) -> None:
        found = self.parts.step.health.verdict()
        if found is None:
            return
        where = self.run.checkpoints / "failure.pt"
        content = {**self._state(), "failure": {"step": found[0], "part": found[1]}}
        if self.rank == 0:
            checkpoint.save(self.run.checkpoints, self.step_now, content, name="failure.pt")
        raise Diverged(
            f"training met a value that is not finite at step {found[0]}, first in the {found[1]}; "
            f"the state is saved in {where}, and checkpoints before it are intact. "
            "A lower optim.lr, optim.grad_clip or another train.precision may help"
        )

    def _state(self) -> dict[str, Any]:
        progress = {
            "step": self.step_now,
            "steps_summed": self.steps_summed,
            "latest": dict(self.latest),
            "turned": self.step_now >= self.rectify_at > 0,
            **self.circumstances,
        }
        return {**state.collect(self.parts.step), "progress": progress, "config": to_dict(self.config)}

    def _save(self, name: str | None = None) -> None:
        content = self._state()
        if self.rank == 0:
            checkpoint.save(self.run.checkpoints, self.step_now, content, name)

    def _resume(self, content: dict[str, Any]) -> None:
        progress = content["progress"]
        against = None
        if self.rank == 0:  # whose circumstances were saved: shards are divided among the processes
            stored = Run.open(self.run.folder).config
            against = circumstances.objection(
                self.run.folder, progress, self.circumstances, stored, self.config, self.parts.train.name
            )
        if against := from_first_rank(against):
            raise ConfigError(against)
        if self.rank == 0:
            self.run.save_config()  # images may have moved
        # Of more or fewer images than when it was saved the turn lies elsewhere; made, it is not made again.
        if progress.get("turned"):
            self.rectify_at = min(self.rectify_at, progress["step"])
        elif progress["step"] >= self.rectify_at > 0:
            content = rectified_state(content, self.config)
        state.restore(self.parts.step, content)
        self.step_now, self.steps_summed, self.latest = (
            progress["step"],
            progress["steps_summed"],
            progress["latest"],
        )
        if self.rank == 0:
            self.journal.keep_until(self.step_now)

    def _broken(self) -> dict[str, Any]:
        """The number of images skipped so far (by this process), where there are any."""
        found = sum(len(images.broken) for images in (self.parts.train, self.parts.val) if images is not None)
        return {"broken_images": found} if found else {}

    def _finish(self) -> None:
        if self.config.train.calibrate_on == "images":
            self.parts.calibrate()
            self._save()  # in the place of the last one
        values = self.parts.final() | self._broken()
        self._say_if_silent(values)
        if "broken_images" in values:
            self.display.say(f"{values['broken_images']} broken images were skipped")
        if self.rank == 0:
            self.journal.write("final", self.step_now, float(self.config.train.epochs), values)

    def resume_command(self) -> str:
        start = "lpjepa"
        if self.world > 1:
            here = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
            machines = f"--nnodes {self.world // here} " if here < self.world else ""
            start = f"torchrun {machines}--nproc-per-node {here} -m lpjepa"
        return f"{start} pretrain {shlex.quote(str(self.run.folder / 'config.yaml'))}"
