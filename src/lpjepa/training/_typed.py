"""Nested dataclasses to and from plain dictionaries; errors name the key and the nearest right one."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A key that does not exist or a value of the wrong type: one sentence, for the user."""


def to_dict(config: Any) -> dict[str, Any]:
    """Plain containers only: what YAML and a checkpoint can hold."""
    return {
        field.name: to_dict(value) if dataclasses.is_dataclass(value) else _plain(value)
        for field in dataclasses.fields(config)
        for value in [getattr(config, field.name)]
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def merge(config: T, changes: dict[str, Any], prefix: str = "") -> T:
    """A copy of `config` with the nested `changes` applied, each checked against its field's type."""
    hints = get_type_hints(type(config))
    names = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in changes.items():
        name, _, entry = str(key).replace("-", "_").partition(".")
        if name not in names or (entry and get_origin(hints[name]) is not dict):
            raise ConfigError(unknown_key(prefix + str(key), list(flat(config, prefix))))
        current = getattr(config, name)
        if entry:  # {"options.classes": "list.txt"} sets one entry and leaves the others
            values[name] = {**values.get(name, current), entry: value}
            continue
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise ConfigError(f"{prefix}{name}: expected a group of keys, got {value!r}")
            values[name] = merge(current, value, f"{prefix}{name}.")
        else:
            values[name] = coerce(value, hints[name], prefix + name)
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def unknown_key(key: str, known: list[str]) -> str:
    """The sentence for a key that is not there, with the nearest one that is."""
    nearest = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.4)
    if not nearest:  # a right name in the wrong group is nearer than any spelling
        last = key.rsplit(".", 1)[-1]
        nearest = [name for name in known if name.rsplit(".", 1)[-1] == last][:1]
    hint = f", the nearest is {nearest[0]}" if nearest else f"; there are {', '.join(known)}"
    return f"{key}: there is no such key{hint}"


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Plain values by dotted key: {"train.epochs": 30, ...}."""
    return dict(_flat_items(config, prefix))


def _flat_items(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flat_items(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, _plain(value)


def hint_of(config: Any, key: str) -> Any:
    """The annotated type of a dotted key that exists."""
    *groups, name = key.split(".")
    for group in groups:
        config = getattr(config, group)
    return get_type_hints(type(config))[name]


def coerce(value: Any, hint: Any, key: str) -> Any:
    """`value` as the annotated type `hint`, or a ConfigError that says what was expected."""
    try:
        return _coerce(value, hint)
    except (TypeError, ValueError):
        raise ConfigError(f"{key}: expected {_describe(hint)}, got {value!r}") from None


def _coerce(value: Any, hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in args:  # the exact type first: 1 stays an int in `int | str`
            if option is not type(None) and not get_origin(option) and type(value) is option:
                return value
        for option in args:
            try:
                return _coerce(value, option)
            except (TypeError, ValueError):
                continue
        raise ValueError
    if hint is type(None):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
            return None
        raise ValueError
    if origin is Literal:
        if value in args and type(value) in {type(arg) for arg in args}:
            return value
        raise ValueError
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise ValueError
        variadic = origin is list or (len(args) == 2 and args[1] is Ellipsis)
        if not variadic and len(value) != len(args):
            raise ValueError
        return origin(_coerce(item, args[0] if variadic else args[i]) for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError
        return {_coerce(k, args[0]): _coerce(v, args[1]) for k, v in value.items()}
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise ValueError
    if hint is int:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, str) and not value.strip().lstrip("+-").isdigit():
            value = float(value)  # YAML reads 1e3 as text
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    if hint is float:
        if isinstance(value, bool):
            raise ValueError
        return float(value)  # YAML reads 1e-4 as text
    if hint is str and isinstance(value, str):
        return value
    raise ValueError


def _describe(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args)
    if origin in (list, tuple):
        inner = [a for a in args if a is not Ellipsis]
        if len(set(inner)) > 1:
            return "a list"
        many = {int: "whole numbers", float: "numbers", str: "words"}.get(inner[0], "values")
        return f"a list of {many}" if Ellipsis in args or origin is list else f"{len(inner)} {many}"
    if origin is dict:
        return "a mapping"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))
