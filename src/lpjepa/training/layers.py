"""A config from its layers: the preset of the source, a YAML file or named preset, then dotted flags.

config = load_config("presets:cifar100", {"target": {"mu": -1.0}})
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from lpjepa._names import suggestion
from lpjepa.training._typed import ConfigError, flat, hint_of, merge, unknown_key
from lpjepa.training.config import Config, check

# Where no preset is named, the source decides which one the other layers start from.
SOURCE_PRESETS = {
    "digits": "digits",
    "fashion-mnist": "fashion-mnist",
    "cifar10": "cifar100",
    "cifar100": "cifar100",
    "imagenet100": "imagenet100",
    "imagenet": "imagenet1k",
}
ANY_IMAGES = "images"


def load_config(source: str | Path | None = None, *changes: dict[str, Any]) -> Config:
    """A preset ("presets:cifar100") or YAML file, then nested dictionaries in order; checked."""
    layers = [*([read_layer(source)] if source is not None else []), *changes]
    if str(source).startswith("presets:"):
        config = Config()
    else:
        config = Config()
        for layer in layers:
            config = merge(config, {"data": {"source": _source(layer) or config.data.source}})
        config = preset(SOURCE_PRESETS.get(config.data.source, ANY_IMAGES))
    for layer in layers:
        config = merge(config, _one_way_to_ask(layer))
    return check(config)


def _source(layer: dict[str, Any]) -> str | None:
    data = layer.get("data")
    return data.get("source") if isinstance(data, dict) else None


def _instead_of_a_file(path: Path) -> str:
    """What may have been meant by a path that is no YAML file."""
    if (path / "config.yaml").is_file():
        return f"this is a run; `lpjepa pretrain {path / 'config.yaml'}` goes on with it"
    if path.is_dir():
        return f"this is a folder; images are given as `--data.source folder --data.root {path}`"
    named = str(path) in preset_names()
    hint = f"did you mean presets:{path}?" if named else "presets are written presets:NAME"
    return f"there is no such file; {hint}"


def read_layer(source: str | Path) -> dict[str, Any]:
    """The nested dictionary in a YAML file or, as presets:NAME, in a preset."""
    import yaml

    if str(source).startswith("presets:"):
        name = str(source).split(":", 1)[1]
        if name not in preset_names():
            hint = suggestion(name, preset_names())
            raise ConfigError(f"presets:{name}: there is no such preset; {hint}")
        text = (resources.files("lpjepa.training") / "presets" / f"{name}.yaml").read_text()
    else:
        path = Path(source)
        if not path.is_file():
            raise ConfigError(f"{source}: {_instead_of_a_file(path)}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: the file cannot be read as YAML ({error})") from None
    try:
        layer = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(layer, dict):
        raise ConfigError(f"{source}: expected groups of keys such as `train:`, got {layer!r}")
    return layer


def preset(name: str) -> Config:
    """The named preset on top of the dataclasses' own defaults."""
    return merge(Config(), _one_way_to_ask(read_layer(f"presets:{name}")))


def preset_names() -> list[str]:
    folder = resources.files("lpjepa.training") / "presets"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def preset_summary(name: str) -> str:
    """What a preset is: the first sentence of its file."""
    text = (resources.files("lpjepa.training") / "presets" / f"{name}.yaml").read_text()
    comment = " ".join(line[1:].strip() for line in text.splitlines() if line.startswith("#"))
    return comment.split(". ")[0].rstrip(".")


def _one_way_to_ask(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer that sets target.mu takes target.active back, and the other way round."""
    target = layer.get("target")
    if isinstance(target, dict):
        given = [key for key in ("active", "mu") if target.get(key) is not None]
        if len(given) == 1:
            other = "mu" if given == ["active"] else "active"
            layer = {**layer, "target": {**target, other: None}}
    return layer


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """["--train.epochs", "5", "--train.no-resume"] -> {"train": {"epochs": 5, "resume": False}}.

    `--data.options.coarse true` and `--data.options "{coarse: true}"` set one entry of a mapping and leave
    the others as the preset or file has them.
    """
    known = flat(Config())
    nested: dict[str, Any] = {}
    queue = list(arguments)
    while queue:
        flag = queue.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"{flag}: expected a flag such as --train.epochs")
        key, _, text = flag[2:].partition("=")
        key = key.replace("-", "_")
        group, _, name = key.rpartition(".")
        value: Any
        entry = ""
        if isinstance(known.get(group), dict):
            key, entry = group, name
        if key not in known and name.startswith("no_") and isinstance(known.get(f"{group}.{name[3:]}"), bool):
            key, value = f"{group}.{name[3:]}", False
        elif key not in known:
            raise ConfigError(unknown_key(key, list(known)))
        elif "=" in flag:
            value = _value(text, key, entry)
        elif queue and not queue[0].startswith("--"):
            values = [_value(queue.pop(0), key, entry)]
            while queue and not queue[0].startswith("--"):
                values.append(_value(queue.pop(0), key, entry))
            single = ... not in get_args(hint_of(Config(), key)) or isinstance(values[0], list)
            value = values[0] if len(values) == 1 and single else values
        elif isinstance(known[key], bool) or entry:
            value = True
        else:
            raise ConfigError(f"{key}: the flag needs a value")
        place = nested
        *groups, name = key.split(".")
        for part in groups:
            place = place.setdefault(part, {})
        if isinstance(known[key], dict) and not entry and isinstance(value, dict):
            place |= {f"{name}.{part}": item for part, item in value.items()}  # adds to what a preset says
        else:
            place[f"{name}.{entry}" if entry else name] = value
    return nested


def _value(text: str, key: str, entry: str) -> Any:
    """A flag's text as YAML reads it; as it is where the key wants text: a folder may be called 2024."""
    import yaml

    if not text:
        return text
    if not entry and hint_of(Config(), key) in (str, str | None):
        return None if text.lower() in ("none", "null") else text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # the type check that follows names the key and what it expects


def replace(config: Config, changes: dict[str, Any]) -> Config:
    """A checked copy of `config` with the nested `changes`."""
    return check(merge(config, _one_way_to_ask(changes)))
