"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from nemocascade_jax.errors import InputError


def check_new_folder(where: str, flag: str) -> pathlib.Path:
    """Returns the path of a folder to write; refuses one that holds something or has no place."""
    path = pathlib.Path(where)
    if path.exists() and not path.is_dir():
        raise InputError(f"{flag} {where}: is a file; name a new folder")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{flag} {where}: is not empty; name a new folder, or remove this one")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise InputError(f"{flag} {where}: {parent} is no folder; make it first")
    if not os.access(parent, os.W_OK):
        raise InputError(f"{flag} {where}: {parent} cannot be written to; name another folder")
    return path


@contextlib.contextmanager
def new_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty folder beside `path` that takes its place when the block ends well."""
    path = path.absolute()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        yield part
        part.rename(path)  # an empty folder of that name is replaced
    finally:
        shutil.rmtree(part, ignore_errors=True)
