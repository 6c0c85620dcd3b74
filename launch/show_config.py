"""Prints the resolved config as JSON; touches no device.

python launch/show_config.py --config configs/cascade.py:tiny --config.seed=1 --origins
"""

import json

from absl import flags

import command
from nemocascade_jax import config

command.define_config()
flags.DEFINE_bool(
    "origins", False, "print, for each key, its value and the file or flag that set it"
)


def main() -> None:
    loaded = command.load_config()
    plain = config.to_plain(loaded.run)
    if flags.FLAGS.origins:
        plain = {
            key: {"value": _at(plain, key), "from": loaded.origins[key]}
            for key in sorted(loaded.origins)
        }
    print(json.dumps(plain, indent=2, allow_nan=False))


def _at(plain: dict, path: str) -> object:
    for step in path.replace("[", ".[").split("."):
        plain = plain[int(step[1:-1])] if step.startswith("[") else plain[step]
    return plain


if __name__ == "__main__":
    command.run(main)
