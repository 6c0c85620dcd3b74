"""Instruction-following rows, answers that follow them, and answers of cheats."""

import functools

from nemocascade_jax.rows.generators import instruction, short_texts
from nemocascade_jax.rows.records import Message, Row

MOST = 1000  # generated rows
# Ids that need a word, or a beginning or an end, written as it was asked for.
NEEDLES = {
    *("keywords:existence", "keywords:frequency", "keywords:word_once"),
    *("first_word:first_word_answer", "first_word:first_word_sent", "startend:end_checker"),
    *("keywords:keyword_specific_position", "copy:copy", "count:keywords_multiple"),
}
# Ids that an answer cut in half cannot follow.
WHOLE = {
    *("startend:end_checker", "startend:quotation", "combination:two_responses", "copy:copy"),
    *("detectable_format:json_format", "count:counting_composition", "custom:multiples"),
    *("detectable_format:number_bullet_lists", "detectable_content:postscript"),
}
# Ids that any text without a certain mark or form follows.
EASY = {
    *("punctuation:no_comma", "punctuation:punctuation_dot", "keywords:forbidden_words"),
    *("punctuation:punctuation_exclamation", "length_constraints:number_words"),
    *("change_case:english_lowercase", "length_constraints:number_sentences"),
    *("change_case:english_capital", "keywords:start_end", "format:no_whitespace"),
}
LOOK_ALIKE = str.maketrans("aceopxyABCEHKMOPTX", "асеорхуАВСЕНКМОРТХ")
# Prompt, ids with arguments, an answer that follows them all.
HARD = (
    ("Say it back.", {"copy:copy": {"prompt_to_repeat": "Rain, please."}}, "Rain, please."),
    ("Give JSON.", {"detectable_format:json_format": None}, '{"rain": [1, 2, {"deep": null}]}'),
    (
        "Write German.",
        {"language:response_language": {"language": "de"}},
        "Der Regen fällt auf die Straße, und wir gehen heute nach Hause.",
    ),
    (
        "Three paragraphs.",
        {"count:counting_composition": {"n_sent": 1, "n_words": 3}},
        "We go. *** We come. *** It rains.",
    ),
    (
        "Place the word.",
        {"keywords:keyword_specific_position": {"keyword": "rain", "n": 2, "m": 3}},
        "Hello. See the rain fall.",
    ),
    (
        "Count from 10 to 50, but only multiples of 7.",
        {"custom:multiples": None},
        "14 21 28 35 42 49",
    ),
    ("Nest them.", {"format:parentheses": None}, "a (b [c {d (e [f] g) h} i] j) k"),
    (
        "Avoid a word.",
        {
            "keywords:forbidden_words": {"forbidden_words": ["snow"]},
            "keywords:existence": {"keywords": ["rain"]},
        },
        "Only rain falls.",
    ),
)


def rows(count: int) -> list[Row]:
    """Returns the hand-made rows and `count` generated ones."""
    return [*map(_hard, range(len(HARD))), *instruction.generate("train", min(count, MOST), 5)]


def satisfying(row: Row) -> str:
    kind, _, index = row.where.rpartition(":")
    return HARD[int(index)][2] if kind == "hard" else _written(0.0)[int(index)]


def truncated(row: Row) -> str:
    """Returns the answer cut in half where that must break it, else one cut while it thinks."""
    good = satisfying(row)
    if _has(row, WHOLE):
        return good[: len(good) // 2].rstrip()
    return f"<think>\nI will write: {good}"


def _hard(index: int) -> Row:
    prompt, tasks, _ = HARD[index]
    fields = {"instruction_id_list": list(tasks), "kwargs": list(tasks.values())}
    where = f"hard:{index}"
    return Row(f"hard-{index}", instruction.AGENT, (Message("user", prompt),), fields, where)


@functools.cache
def _written(slip: float) -> list[str]:
    talks = instruction.demonstrations("train", MOST, 5, slip)
    return [talk.messages[-1].content for talk in talks]


def _has(row: Row, ids: set[str]) -> bool:
    return not ids.isdisjoint(row.fields["instruction_id_list"])


def _demands(row: Row) -> bool:
    """Returns whether a text must have something of its own to follow the row."""
    return bool(set(row.fields["instruction_id_list"]) - EASY)


def _forgets(row: Row) -> str | None:
    kind, _, index = row.where.rpartition(":")
    return None if kind == "hard" else _written(1.0)[int(index)]


def _disguised(row: Row, form) -> str | None:
    """Returns the answer with its letters disguised, where a word must be there."""
    return form(satisfying(row)) if _has(row, NEEDLES) else None


def _hidden(row: Row) -> str | None:
    """Returns the answer with a forbidden word that only a reader sees."""
    for name, kwargs in zip(row.fields["instruction_id_list"], row.fields["kwargs"], strict=True):
        if name == "keywords:forbidden_words":
            word = kwargs["forbidden_words"][0]
            return f"{word[:1]}\u200b{word[1:]} {satisfying(row)}"
    return None


def _on_demand(text: str):
    return lambda row: text if _demands(row) else None


def _for_json(text: str):
    return lambda row: text if _has(row, {"detectable_format:json_format"}) else None


ATTACKS = {
    "prompt in quotes": lambda row: f'"{row.messages[-1].content}"',
    "prompt in a fence": lambda row: f"```\n{row.messages[-1].content}\n```",
    "every constraint forgotten": _forgets,
    "look-alike letters": lambda row: _disguised(row, lambda text: text.translate(LOOK_ALIKE)),
    "letters apart": lambda row: _disguised(row, " ".join),
    "zero-width characters inside": lambda row: _disguised(row, "\u200b".join),
    "forbidden word in disguise": _hidden,
    "claim to have followed": _on_demand("everything that was asked for is done"),
    "names of the constraints": lambda row: (
        ("; ".join(row.fields["instruction_id_list"])) if _has(row, NEEDLES) else None
    ),
    "other topic": _on_demand(short_texts.TOPICS[0][:1]),
    "matches everything": _on_demand(".*"),
    "bomb of stars": _on_demand("*" * 50_000 + "x"),
    "bomb of brackets": _on_demand("[<<" * 30_000),
    "NaN as JSON": _for_json("NaN"),
    "deep nesting": _for_json("[" * 50_000 + "]" * 50_000),
}
