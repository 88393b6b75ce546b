"""Where things lie: the data of a scale, the folders of its trainings, and what is found where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpjepa.recipes.cases import scale_of
from lpjepa.recipes.smoke_sets import write_smoke_sets
from lpjepa.training import Config
from lpjepa.training.checkpoint import check_writable
from lpjepa.training.config import identity
from lpjepa.training.layers import replace


@dataclass(frozen=True)
class Places:
    """`work` holds runs and what the smoke scale makes, `results` the JSON files, `data_root` the images."""

    work: Path
    results: Path
    data_root: Path
    scale: str

    def run_folder(self, config: Config) -> Path:
        return self.work / self.scale / f"{config.loss.method}-{identity(config)}"

    def checkpoints(self, config: Config) -> Path:
        return self.run_folder(config) / "checkpoints"

    def prepare(self) -> None:
        if self.scale == "smoke":
            check_writable(self.work, "--work", create=False)
            write_smoke_sets(self.work / "sets")

    def located(self, config: Config) -> Config:
        """The config with the place of its images.

        An official set that lies there as arrays (cifar100.npz) is read from them: the images are the same,
        and so is the training.
        """
        source = config.data.source
        root = self._fill(scale_of(self.scale)["data"][source])
        arrays = self.data_root / f"{source}.npz"
        if source.startswith("cifar") and arrays.is_file() and not _has_official(Path(root), source):
            return replace(config, {"data": {"source": "npz", "root": str(arrays)}})
        return replace(config, {"data": {"root": root}})

    def transfer_sources(self) -> dict[str, str]:
        """The downstream sets of the scale that are there: name -> NAME=PATH, as for `lpjepa evaluate`."""
        found = {}
        for label, text in scale_of(self.scale)["transfer"].items():
            name, _, root = self._fill(text).partition("=")
            arrays = self.data_root / f"{name}.npz"
            if name.startswith("cifar") and arrays.is_file() and not _has_official(Path(root), name):
                found[label] = f"npz={arrays}"
            elif _is_there(name, Path(root)):
                found[label] = f"{name}={root}"
        return found

    def _fill(self, text: str) -> str:
        return text.format(work=self.work, root=self.data_root)


def _has_official(root: Path, name: str) -> bool:
    number = name.removeprefix("cifar")
    names = (f"cifar-{number}-python", f"cifar-{number}-batches-py", f"cifar-{number}-python.tar.gz")
    return any((root / n).exists() for n in names)


def _is_there(name: str, root: Path) -> bool:
    if name.startswith("cifar"):
        return _has_official(root, name)
    # torchvision knows its own folders below the root; it downloads or complains itself.
    return root.exists()


def query_places(scale: str) -> dict[str, Any]:
    """Places in the validation set of the queries of the qualitative figures, and the crop's box."""
    return dict(scale_of(scale)["queries"])
