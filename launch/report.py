"""Writes a workdir as one self-contained HTML file that needs no network.

python launch/report.py --workdir runs/tiny
"""

from __future__ import annotations

import pathlib

from absl import flags

import command
from nemocascade_jax import report

flags.DEFINE_string("workdir", None, "folder that run.py wrote, finished or not")
flags.DEFINE_string("out", None, "file to write; DIR/report.html when not given")
flags.DEFINE_float("rollout_mb", report.ROLLOUT_MB, "megabytes of rollouts to embed", 0.0)

FLAGS = flags.FLAGS


def main() -> None:
    workdir = pathlib.Path(command.required("workdir"))
    out = None if FLAGS.out is None else pathlib.Path(FLAGS.out)
    path = report.write_report(workdir, out, FLAGS.rollout_mb)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    command.run(main)
