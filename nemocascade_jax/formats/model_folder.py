"""What `--model DIR` names: a Hugging Face folder or one step of a native checkpoint.

Checking a folder imports no jax, so that a command refuses a wrong one at once; loading does.
"""

from __future__ import annotations

import difflib
import json
import pathlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from nemocascade_jax import config
from nemocascade_jax.config import ModelConfig
from nemocascade_jax.data.tokenizer import (
    FILES,
    NoTokenizer,
    Tokenizer,
    load_tokenizer,
    stop_ids_of,
)
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.families import model_config_from_hf

NATIVE = pathlib.Path("model", "model.json")
STOP_FILE = "generation_config.json"

# What a native checkpoint says of the published one that it began with.
HF_CONFIG, HF_DTYPES = "hf_config.json", "dtypes.json"
MORE_FILES = ("vocab.json", "merges.txt", "chat_template.json")


class ModelFolder(NamedTuple):
    """A folder that holds a model, with all that its small files say."""

    path: pathlib.Path
    kind: Literal["hf", "native"]
    cfg: ModelConfig
    tokenizer: Tokenizer | None
    stop_ids: tuple[int, ...]

    @property
    def vocab_limit(self) -> int:
        """The ids that can be sampled end here: columns beyond the tokenizer's size mean nothing."""
        return self.cfg.vocab_size if self.tokenizer is None else self.tokenizer.size

    @property
    def small(self) -> pathlib.Path:
        """Where the files beside the weights lie."""
        return self.path if self.kind == "hf" else self.path / NATIVE.parent


class LoadedModel(NamedTuple):
    """A model with its weights, in the types of its precision, and all that its folder says."""

    cfg: ModelConfig
    params: Any
    tokenizer: Tokenizer | None
    stop_ids: tuple[int, ...]


def check_model_folder(where: str, flag: str = "--model") -> ModelFolder:
    """Returns what a model folder's small files say; refuses a folder that holds no model."""
    path = pathlib.Path(where)
    if not path.is_dir():
        kind = "is a file, not a folder" if path.exists() else "no such folder"
        raise InputError(f"{flag} {where}: {kind}{_near(path)}")
    if (path / NATIVE).is_file():
        cfg = config.build(ModelConfig, _json(path / NATIVE), str(path / NATIVE))
        small = path / NATIVE.parent
    elif (path / "config.json").is_file():
        cfg, small = _hf_config(path, flag), path
    else:
        raise InputError(
            f"{flag} {where}: holds neither config.json (Hugging Face) nor {NATIVE} (native "
            f"checkpoint){_steps(path)}"
        )
    tokenizer = _tokenizer(small)
    if tokenizer is not None and tokenizer.size > cfg.vocab_size:
        raise InputError(
            f"{flag} {where}: the tokenizer has {tokenizer.size} ids, the model's vocab_size is "
            f"{cfg.vocab_size}; use the tokenizer the model was trained with"
        )
    stops = _stops(small) if tokenizer is None else tokenizer.stop_ids
    return ModelFolder(path, "hf" if small == path else "native", cfg, tokenizer, stops)


def load_model(
    where: str | ModelFolder,
    shardings: Any = None,
    *,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> LoadedModel:
    """Returns the model of a folder, its weights laid as `shardings` says or on the default device."""
    # Imported here, because these import jax and the checks above must not wait for it.
    from nemocascade_jax.formats.hf import load_hf

    folder = check_model_folder(where) if isinstance(where, str) else where
    if folder.kind == "hf":
        params = load_hf(folder.path, folder.cfg, shardings, report=report)
    else:
        params = _load_native(folder, shardings)
    return LoadedModel(folder.cfg, params, folder.tokenizer, folder.stop_ids)


def carried_files(folder: ModelFolder) -> dict[str, bytes]:
    """Returns the files that go with the weights into a native checkpoint and out of it again.

    They are the tokenizer's, the template, the generation settings, and of a published checkpoint its
    config.json and the type of every tensor.
    """
    names = {*FILES, *MORE_FILES}
    if folder.kind == "native":
        names |= {HF_CONFIG, HF_DTYPES}
    found = {
        name: (folder.small / name).read_bytes()
        for name in sorted(names)
        if (folder.small / name).is_file()
    }
    if folder.tokenizer is not None:
        found |= folder.tokenizer.files
    if folder.kind == "hf":
        from nemocascade_jax.formats.hf import read_dtypes  # it imports jax

        found[HF_CONFIG] = (folder.path / "config.json").read_bytes()
        found[HF_DTYPES] = json.dumps(read_dtypes(folder.path, folder.cfg)).encode()
    return found


def _load_native(folder: ModelFolder, shardings: Any) -> Any:
    import jax
    import jax.numpy as jnp

    from nemocascade_jax.formats.checkpoint import load_params
    from nemocascade_jax.models.hybrid import model_specs
    from nemocascade_jax.models.layers import held_type
    from nemocascade_jax.sharding import map_specs

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = map_specs(
        lambda path, spec: jax.ShapeDtypeStruct(
            spec.shape, jnp.dtype(held_type(path, folder.cfg)), sharding=device
        ),
        model_specs(folder.cfg),
    )
    if shardings is not None:
        like = jax.tree.map(
            lambda leaf, laid: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=laid),
            like,
            shardings,
        )
    return load_params(folder.path, like)


def _hf_config(path: pathlib.Path, flag: str) -> ModelConfig:
    try:
        return model_config_from_hf(_json(path / "config.json"))
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{flag} {path}: {error}") from None


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); restore the file") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object, got {type(value).__name__}")
    return value


def _tokenizer(folder: pathlib.Path) -> Tokenizer | None:
    try:
        return load_tokenizer(str(folder))
    except NoTokenizer:
        return None


def _stops(folder: pathlib.Path) -> tuple[int, ...]:
    path = folder / STOP_FILE
    return stop_ids_of({STOP_FILE: path.read_bytes()}, str(folder)) if path.is_file() else ()


def _near(path: pathlib.Path) -> str:
    """Returns "; did you mean X?" for the sibling folder with the nearest name."""
    parent = path.parent if path.parent.is_dir() else None
    names = [entry.name for entry in parent.iterdir() if entry.is_dir()] if parent else []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"; did you mean {path.parent / close[0]}?"
    return "; name a Hugging Face checkpoint folder or STAGE/checkpoints/STEP"


def _steps(path: pathlib.Path) -> str:
    """Returns a hint at the newest native step, or at a Hugging Face folder, below the one given."""
    below = [found for depth in ("*", "*/*", "*/*/*") for found in path.glob(f"{depth}/{NATIVE}")]
    steps = [found.parents[1] for found in below]
    folders = sorted(found.parent for found in path.glob("*/config.json"))
    if steps or folders:
        return f"; did you mean {max(steps, key=_step_order) if steps else folders[0]}?"
    return "; name the folder that has one"


def _step_order(path: pathlib.Path) -> tuple[str, int]:
    return str(path.parent), int(path.name) if path.name.isdigit() else -1
