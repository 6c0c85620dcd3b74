"""Writes the first batches of a stage as data, a line a row; makes no update.

    python launch/show_batch.py --config configs/cascade.py:micro --stage if_rl --steps 1 --out batch.jsonl

`--rewards FILE` (JSON lines with `group`, `sample`, and `reward` or `status`) takes rewards from a
file instead of grading. The weights are those of `config.init`.
"""

import json
import pathlib

from absl import flags

import command
from nemocascade_jax.errors import InputError

command.define_config()
flags.DEFINE_string("stage", None, "name of the stage (default: the first in order)")
flags.DEFINE_integer("steps", 1, "how many batches", lower_bound=1)
flags.DEFINE_string("out", None, "JSON Lines file to write")
flags.DEFINE_string("rewards", None, "rewards to use instead of grading")


def main() -> None:
    run = command.load_config().run
    out = pathlib.Path(command.required("out"))
    stage = flags.FLAGS.stage or run.order[0]
    if stage not in run.order:
        raise InputError(
            f"--stage: no stage {stage!r} in config.order; known: {', '.join(run.order)}"
        )
    from nemocascade_jax.cascade import inputs as cascade_inputs

    console = command.make_console()
    given = read_rewards(flags.FLAGS.rewards)
    inputs = cascade_inputs.load_inputs(run, console.say)
    settings = (
        [] if given is not None or run.stages[stage].kind != "grpo" else [run.stages[stage].reward]
    )
    with command.reward_pool(settings) as grade:
        command.start_jax(run.mesh)
        from nemocascade_jax import metrics
        from nemocascade_jax.cascade.preview import stage_batches

        rows = stage_batches(run, inputs, stage, flags.FLAGS.steps, grade=grade, rewards=given)
        metrics.write_lines(out, rows)


def read_rewards(path: str | None) -> dict[tuple[int, int], dict] | None:
    """Returns (group, sample) -> its line, None without a file."""
    if path is None:
        return None
    if not pathlib.Path(path).is_file():
        raise InputError(f"--rewards: no file {path!r}")
    found = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            key = int(entry["group"]), int(entry["sample"])
            if ("reward" in entry) == (entry.get("status", "ok") != "ok"):
                raise KeyError("either reward, or a status other than ok")
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"--rewards: {path}:{number}: {type(error).__name__}: {error}; a good line: "
                '{"group": 0, "sample": 1, "reward": 0.5}'
            ) from None
        found[key] = entry
    return found


if __name__ == "__main__":
    command.run(main)
