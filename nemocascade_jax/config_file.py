"""Reads a config file and dotted overrides into a record; every fault names key, value and remedy."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import pathlib
import re
import sys
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from ml_collections import config_dict

from nemocascade_jax import config
from nemocascade_jax.config import ConfigError, RunConfig


@dataclasses.dataclass(frozen=True)
class LoadedConfig:
    run: RunConfig
    origins: dict[str, str]  # dotted key -> the file and line, or the flag, that set it


def load_config(where: str, overrides: list[tuple[str, str]]) -> LoadedConfig:
    """Returns the run that `FILE[:arg]` describes with `overrides` (dotted path, text) applied.

    The text of an override is read by the type of the key it sets, so optional numbers take a number
    or `None`; the command line wins over the file.
    """
    block, origins = _read_file(where)
    for path, text in overrides:
        try:
            _apply(block, path, text)
        except ConfigError as error:
            raise _with_place(error, block, path) from None
        origins[path] = f"--config.{path}={text} (over {origins.get(path, where)})"
    return LoadedConfig(config.build(RunConfig, block), origins)


def _read_file(where: str) -> tuple[dict[str, Any], dict[str, str]]:
    name, _, arg = where.partition(":")
    path = pathlib.Path(name)
    if not path.is_file():
        near = config._nearest(path.name, [entry.name for entry in path.parent.glob("*.py")])
        raise ConfigError("--config", f"no file {name!r}{near}")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _recorded_setters() as setters:
        try:
            spec.loader.exec_module(module)
            block = module.get_config(arg) if arg else module.get_config()
        except ConfigError:
            raise
        except (AttributeError, ImportError, KeyError, SyntaxError, TypeError, ValueError) as error:
            raise ConfigError(f"--config {where}", f"{type(error).__name__}: {error}") from error
    if not isinstance(block, config_dict.ConfigDict):
        raise ConfigError(
            f"--config {where}", f"get_config returned {type(block).__name__}, not ConfigDict"
        )
    return _plain(block), dict(_origins(block, setters, str(path), ""))


def _plain(block: config_dict.ConfigDict) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in block.keys():  # noqa: SIM118 (a ConfigDict resolves references by item)
        try:
            value = block[key]
        except config_dict.RequiredValueError:
            continue  # absent, so that the record says what it expected
        out[key] = _plain(value) if isinstance(value, config_dict.ConfigDict) else value
    return out


def _with_place(error: ConfigError, block: dict[str, Any], path: str) -> ConfigError:
    """Adds where a key of that name does exist, for one that was put at the wrong level."""
    leaf = path.rsplit(".", 1)[-1]
    if not error.path.endswith("." + leaf):
        return error
    leaf = config.OTHER_NAMES.get(leaf, leaf)
    places = [key for key in _paths(block, "config.") if key.rsplit(".", 1)[-1] == leaf]
    if "unknown key" not in error.problem or not places:
        return error
    return ConfigError(error.path, f"unknown key; did you mean {places[-1]!r}?")


def _paths(block: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in block.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


# --- overrides -----------------------------------------------------------------------------------


def _apply(block: dict[str, Any], path: str, text: str) -> None:
    """Sets the key at `path` of the nested dicts from text, by the type its record declares."""
    steps = [step for step in re.split(r"\.|(?=\[)", path) if step]
    holder: Any = block
    hint: Any = RunConfig
    for depth, step in enumerate(steps):
        so_far = "config." + ".".join(steps[: depth + 1]).replace(".[", "[")
        hint = _hint_below(hint, holder, step, so_far)
        if depth == len(steps) - 1:
            _set(holder, step, _read_text(text, hint, so_far), so_far)
            return
        if step.startswith("[") or holder.get(step) is None:
            raise ConfigError(so_far, f"{holder.get(step)!r} holds no keys")
        if isinstance(holder[step], tuple | list):
            holder[step] = list(holder[step])
        holder = holder[step]


def _hint_below(hint: Any, holder: Any, step: str, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _hint_below(args[0], holder, step, path)
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in args if part is not type(None)]
        return _hint_below(parts[0], holder, step, path)
    if step.startswith("["):
        if origin is not tuple or not step[1:-1].isdigit():
            raise ConfigError(path, f"{step} is no entry of {config._name(hint)}")
        index = int(step[1:-1])
        if index >= len(holder):
            raise ConfigError(path, f"entry {index} of a tuple of {len(holder)}")
        return args[0] if len(args) == 2 and args[1] is Ellipsis else args[index]
    if origin is dict:
        if step not in holder:
            raise ConfigError(path, f"unknown key{config._nearest(step, holder)}")
        return args[1]
    if dataclasses.is_dataclass(hint):
        hint = hint.choose(holder) if hasattr(hint, "choose") else hint
        hints = config._hints(typing.cast(type, hint))
        if step not in hints:
            raise ConfigError(path, f"unknown key{config._nearest(step, hints)}")
        return hints[step]
    raise ConfigError(path, f"{config._name(hint)} holds no keys")


def _set(holder: Any, step: str, value: Any, path: str) -> None:
    if step.startswith("["):
        holder[int(step[1:-1])] = value
    else:
        holder[step] = value


def _read_text(text: str, hint: Any, path: str) -> Any:
    """Returns the value that `text` writes for the annotation, or raises ConfigError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        try:
            return _read_text(text, args[0], path)
        except ConfigError:
            raise _unreadable(text, hint, path) from None
    if origin in (typing.Union, types.UnionType):
        if text == "None" and type(None) in args:
            return None
        for part in args:
            with contextlib.suppress(ConfigError):
                return _read_text(text, part, path)
        raise _unreadable(text, hint, path)
    if origin is Literal:
        if text not in args:
            raise _unreadable(text, hint, path, config._nearest(text, args))
        return text
    if hint is str:
        return text
    if hint is bool and text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    if hint is int and re.fullmatch(r"[+-]?\d+(_\d+)*", text):
        return int(text)
    if hint is float:
        with contextlib.suppress(ValueError):
            return float(text)
    if origin is tuple:
        return _read_tuple(text, hint, path)
    if dataclasses.is_dataclass(hint) or origin is dict:
        raise ConfigError(path, f"{text!r} cannot stand for a section; set its keys one by one")
    raise _unreadable(text, hint, path)


def _read_tuple(text: str, hint: Any, path: str) -> tuple:
    entries: list[Any]
    if text.strip()[:1] in ("(", "["):
        try:
            entries = list(ast.literal_eval(text))
        except (SyntaxError, ValueError, TypeError):
            raise _unreadable(text, hint, path) from None
        return tuple(entries)
    args = typing.get_args(hint)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    hints = [args[0]] * len(parts) if len(args) == 2 and args[1] is Ellipsis else list(args)
    if len(hints) != len(parts):
        raise _unreadable(text, hint, path)
    return tuple(_read_text(part, one, path) for part, one in zip(parts, hints, strict=True))


def _unreadable(text: str, hint: Any, path: str, why: str = "") -> ConfigError:
    return ConfigError(path, f"expected {config._name(hint)}, got {text!r}{why}")


# --- who set what --------------------------------------------------------------------------------


@contextlib.contextmanager
def _recorded_setters() -> Iterator[dict[tuple[int, str], str]]:
    """Notes, while a config file runs, the file and line that set each key of each ConfigDict."""
    setters: dict[tuple[int, str], str] = {}
    original = config_dict.ConfigDict.__setitem__

    def noted(self: config_dict.ConfigDict, key: str, value: Any) -> None:
        frame, updated = sys._getframe(1), False
        while frame.f_back and "ml_collections" in frame.f_code.co_filename:
            updated = updated or frame.f_code.co_name == "update"
            frame = frame.f_back
        if updated and frame.f_back and frame.f_back.f_code.co_name != "_read_file":
            frame = frame.f_back  # changes handed to a shared block: the caller chose the value
        setters[id(self), key] = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        original(self, key, value)

    config_dict.ConfigDict.__setitem__ = noted
    try:
        yield setters
    finally:
        config_dict.ConfigDict.__setitem__ = original


def _short(filename: str) -> str:
    path = pathlib.Path(filename).resolve()
    here = pathlib.Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _origins(
    block: config_dict.ConfigDict, setters: dict[tuple[int, str], str], file: str, prefix: str
) -> Iterator[tuple[str, str]]:
    for key in block.keys():  # noqa: SIM118
        path = f"{prefix}{key}"
        try:
            value = block[key]
        except config_dict.RequiredValueError:
            value = None
        if isinstance(value, config_dict.ConfigDict):
            yield from _origins(value, setters, file, path + ".")
        else:
            yield path, setters.get((id(block), key), file)
