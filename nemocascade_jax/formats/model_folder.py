"""What `--model DIR` names: a Hugging Face folder or one step of a native checkpoint.

Checking a folder imports no jax, so that a command refuses a wrong one at once; loading does.
"""

from __future__ import annotations

import difflib
import json
import pathlib
from typing import Any, Literal, NamedTuple

from nemocascade_jax import config
from nemocascade_jax.config import ModelConfig
from nemocascade_jax.data.tokenizer import NoTokenizer, Tokenizer, load_tokenizer, stop_ids_of
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.families import model_config_from_hf

NATIVE = pathlib.Path("model", "model.json")
STOP_FILE = "generation_config.json"


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


class LoadedModel(NamedTuple):
    """A model with its weights in float32 and all that its folder says."""

    cfg: ModelConfig
    params: Any
    tokenizer: Tokenizer | None
    stop_ids: tuple[int, ...]


def check_model_folder(where: str) -> ModelFolder:
    """Returns what a model folder's small files say; refuses a folder that holds no model."""
    path = pathlib.Path(where)
    if not path.is_dir():
        kind = "is a file, not a folder" if path.exists() else "no such folder"
        raise InputError(f"--model {where}: {kind}{_near(path)}")
    if (path / NATIVE).is_file():
        cfg = config.build(ModelConfig, _json(path / NATIVE), str(path / NATIVE))
        small = path / NATIVE.parent
    elif (path / "config.json").is_file():
        cfg, small = _hf_config(path), path
    else:
        raise InputError(
            f"--model {where}: holds neither config.json (Hugging Face) nor {NATIVE} (native "
            f"checkpoint){_steps(path)}"
        )
    tokenizer = _tokenizer(small)
    if tokenizer is not None and tokenizer.size > cfg.vocab_size:
        raise InputError(
            f"--model {where}: the tokenizer has {tokenizer.size} ids, the model's vocab_size is "
            f"{cfg.vocab_size}; use the tokenizer the model was trained with"
        )
    stops = _stops(small) if tokenizer is None else tokenizer.stop_ids
    return ModelFolder(path, "hf" if small == path else "native", cfg, tokenizer, stops)


def load_model(where: str | ModelFolder) -> LoadedModel:
    """Returns the model of a folder, its weights on the default device."""
    # Imported here, because these import jax and the checks above must not wait for it.
    from nemocascade_jax.formats.hf import load_hf

    folder = check_model_folder(where) if isinstance(where, str) else where
    if folder.kind == "hf":
        params = load_hf(folder.path, folder.cfg)
    else:
        params = _load_native(folder)
    return LoadedModel(folder.cfg, params, folder.tokenizer, folder.stop_ids)


def _load_native(folder: ModelFolder) -> Any:
    import jax
    import jax.numpy as jnp

    from nemocascade_jax.formats.checkpoint import load_params
    from nemocascade_jax.models.hybrid import model_specs
    from nemocascade_jax.sharding import map_specs

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = map_specs(
        lambda path, spec: jax.ShapeDtypeStruct(spec.shape, jnp.float32, sharding=device),
        model_specs(folder.cfg),
    )
    return load_params(folder.path, like)


def _hf_config(path: pathlib.Path) -> ModelConfig:
    try:
        return model_config_from_hf(_json(path / "config.json"))
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"--model {path}: {error}") from None


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
