"""Native checkpoints: complete or absent, everything a future depends on in one composite (orbax).

STAGE/checkpoints/STEP/ holds `params`, `optimizer` (with step and cursor), `host` (HostState) and
`model` (model.json and the tokenizer's files), so a step folder can be used as a model by itself.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from nemocascade_jax import config
from nemocascade_jax.config import ModelConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.sharding import Params
from nemocascade_jax.state import HostState, TrainState

SAVING = (
    "the checkpoints before it are whole: free space or raise the file-size limit, "
    "then run the same command again"
)
RESTORING = "it is damaged or of another model: remove it to go on from the one before"


class FilesHandler(ocp.CheckpointHandler):
    """Stores small files as they are, so that a person and other programs can read them."""

    def save(self, directory: Any, args: FilesSave) -> None:
        for name, data in args.files.items():
            (directory / name).write_bytes(data)

    def restore(self, directory: Any, args: FilesRestore) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.iterdir()}

    def finalize(self, directory: Any) -> None:
        pass

    def close(self) -> None:
        pass


@ocp.args.register_with_handler(FilesHandler, for_save=True)
@dataclasses.dataclass
class FilesSave(ocp.args.CheckpointArgs):
    files: dict[str, bytes]


@ocp.args.register_with_handler(FilesHandler, for_restore=True)
@dataclasses.dataclass
class FilesRestore(ocp.args.CheckpointArgs):
    pass


def model_files(cfg: ModelConfig, small_files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files of the `model` item: the shape, and what goes with the weights unchanged."""
    text = json.dumps(config.to_plain(cfg), indent=2, allow_nan=False)
    return {"model.json": text.encode(), **small_files}


class Checkpoints:
    """The checkpoints of one stage folder; saves run in the background, one at a time."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None,  # what is kept depends on the scores; `remove_checkpoint` does it
            enable_async_checkpointing=True,
            create=True,
            cleanup_tmp_directories=True,
        )
        self.folder = folder
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def latest(self) -> int | None:
        """Returns the newest complete step, None when there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState, host: HostState, files: dict[str, bytes]) -> None:
        """Starts saving; a fault of the save before it is raised here."""
        optimizer = {"opt_state": state.opt_state, "step": state.step, "cursor": state.cursor}
        with _faults_named(self.folder, SAVING):
            self._manager.save(
                host.step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(state.params),
                    optimizer=ocp.args.StandardSave(optimizer),
                    host=ocp.args.JsonSave(dataclasses.asdict(host)),
                    model=FilesSave(files),
                ),
            )

    def wait(self) -> None:
        """Returns when every save is on disk."""
        with _faults_named(self.folder, SAVING):
            self._manager.wait_until_finished()

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, HostState]:
        """Returns the state saved at `step`, with the shapes and shardings of `like`."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        optimizer = {
            "opt_state": abstract.opt_state,
            "step": abstract.step,
            "cursor": abstract.cursor,
        }
        with _faults_named(self.folder / str(step), RESTORING):
            found = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(abstract.params),
                    optimizer=ocp.args.StandardRestore(optimizer),
                    host=ocp.args.JsonRestore(),
                ),
            )
        state = TrainState(params=found["params"], **found["optimizer"])
        return state, HostState(**found["host"])

    def close(self) -> None:
        self._manager.close()


def save_model(folder: pathlib.Path, params: Params, files: dict[str, bytes]) -> None:
    """Writes a folder that serves as a model like a step does, without the state of any training."""
    with _faults_named(folder, SAVING), ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.resolve() / "params", params)
    (folder / "model").mkdir()
    for name, data in files.items():
        (folder / "model" / name).write_bytes(data)


def checkpoint_steps(folder: pathlib.Path) -> list[int]:
    """Returns the complete steps of a stage's checkpoint folder, ascending."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.name.isdecimal()]
    return sorted(int(name) for name in names if (folder / name / "params").is_dir())


def remove_checkpoint(folder: pathlib.Path, step: int) -> None:
    """Removes one step so that it is either whole or gone, whenever the process dies."""
    gone = folder / f".removed-{step}"
    (folder / str(step)).rename(gone)
    for leftover in folder.glob(".removed-*"):
        shutil.rmtree(leftover)


def load_params(folder: pathlib.Path, like: Any) -> Any:
    """Returns the parameters of a step folder, with the shapes and shardings of `like`."""
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    with _faults_named(folder, RESTORING), ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder.resolve() / "params", abstract)


def load_model_files(folder: pathlib.Path) -> tuple[ModelConfig, dict[str, bytes]]:
    """Returns the model record and the tokenizer's files of a step folder."""
    where = folder / "model"
    if not (where / "model.json").is_file():
        raise InputError(f"{folder}: no native checkpoint: model/model.json is not there")
    # orbax leaves a marker of its own on file systems where it does not rename
    files = {
        path.name: path.read_bytes()
        for path in where.iterdir()
        if path.name != "commit_success.txt"
    }
    return config.build(
        ModelConfig, json.loads(files.pop("model.json")), str(where / "model.json")
    ), files


class _faults_named:
    """Turns a fault of storage into one line that names the folder; nothing else is caught."""

    def __init__(self, folder: pathlib.Path, remedy: str):
        self.folder, self.remedy = folder, remedy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError | OSError | KeyError) and not isinstance(error, InputError):
            said = " ".join(str(error).split())
            cause = said if len(said) <= 500 else f"{said[:300]} ... {said[-200:]}"
            raise InputError(f"checkpoint {self.folder}: {cause}; {self.remedy}") from error
