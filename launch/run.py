"""Runs a config: one stage or a cascade; the same command again resumes.

python launch/run.py --config configs/cascade.py:micro --workdir runs/micro
"""

import pathlib
import sys

from absl import flags

import command

command.define_config()
flags.DEFINE_string("workdir", None, "folder of the run; made when absent, continued when there")


def main() -> None:
    run = command.load_config().run
    workdir = pathlib.Path(command.required("workdir"))
    from nemocascade_jax.cascade import inputs as cascade_inputs

    console = command.make_console()
    cascade_inputs.check_workdir(run, workdir)
    inputs = cascade_inputs.load_inputs(run, console.say)
    cascade_inputs.claim_workdir(run, workdir)
    rewards = [stage.reward for stage in run.stages.values() if stage.kind != "sft"]
    with command.reward_pool(rewards) as grade:
        command.start_jax(run.mesh)
        from nemocascade_jax.cascade.graph import run_cascade

        ledger = run_cascade(run, workdir, inputs, grade=grade, console=console)
    from nemocascade_jax.report import write_report

    print(command.summary(ledger.content), file=sys.stdout)
    print(f"report: {write_report(workdir)}", file=sys.stdout)


if __name__ == "__main__":
    command.use_huge_pages()
    command.run(main)
