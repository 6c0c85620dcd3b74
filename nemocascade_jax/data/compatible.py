"""Do two tokenizers mean the same by every id? A teacher that does not would teach nonsense; no jax."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Row


def refuse_other_ids(student: Tokenizer, teacher: Tokenizer, where: str) -> None:
    """Raises InputError for a teacher with another id, special token or stop id (traps T04)."""
    pairs = itertools.zip_longest(meanings(student), meanings(teacher), fillvalue=NOTHING)
    for number, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            raise InputError(
                f"{where}: id {number} is {theirs} in the teacher's tokenizer and {ours} in the "
                f"student's ({teacher.size} and {student.size} ids); a teacher needs the student's "
                "vocabulary"
            )
    if set(student.stop_ids) != set(teacher.stop_ids):
        raise InputError(
            f"{where}: the teacher stops at ids {sorted(teacher.stop_ids)}, the student at "
            f"{sorted(student.stop_ids)}; make generation_config.json the same"
        )


def refuse_other_prompts(
    student: Tokenizer, teacher: Tokenizer, rows: Sequence[Row], where: str, *, thinking: bool
) -> None:
    """Raises InputError for a teacher that turns a prompt, its tools or its text into other ids."""
    for row in rows:
        ours = chat.render_row(row, student, thinking=thinking)
        try:
            theirs = chat.render_row(row, teacher, thinking=thinking)
        except InputError as error:
            raise InputError(f"{where}: the teacher's tokenizer: {error}") from None
        if ours != theirs:
            place = next(
                (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            raise InputError(
                f"{where}: the teacher's chat template renders {row.where} otherwise from token "
                f"{place} on: {_shown(teacher, theirs[place:])} there, "
                f"{_shown(student, ours[place:])} for the student; give both the same template"
            )


def meanings(tokenizer: Tokenizer) -> Iterator[str]:
    """Returns what each id stands for, for people: its text, a special token's name, or "no id"."""
    names = {number: name for name, number in reversed(list(tokenizer.specials.items()))}
    for number in range(tokenizer.size):
        text = tokenizer.table[number] if number < len(tokenizer.table) else None
        if number in names:
            yield f"the special token {names[number]!r}"
        else:
            yield NOTHING if text is None else repr(text.decode("utf-8", "backslashreplace"))


def _shown(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return repr(tokenizer.decode(ids[:6], specials=True)) if ids else "the end"


NOTHING = "no id"
