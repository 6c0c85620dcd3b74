"""Kills a run with SIGKILL at random moments, runs it again to the end, and compares with one that was not killed.

    python tools/kill_run.py --config configs/cascade.py:micro --out runs/kill --kills 3

Compared byte for byte: config.json, cascade.json, metrics.jsonl, rollouts/, evaluations/. Prints one
line a kill and exits 1 on the first difference. `--straight DIR` reuses a finished run.
"""

import argparse
import pathlib
import random
import shutil
import subprocess
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", default="configs/cascade.py:micro")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--straight", type=pathlib.Path)
    parser.add_argument("overrides", nargs="*", help="--config.a.b=v, after --")
    args = parser.parse_args()
    began = time.monotonic()
    straight = args.straight or args.out / "straight"
    if not args.straight:
        shutil.rmtree(args.out, ignore_errors=True)
        finish(args, straight)
    length = time.monotonic() - began if not args.straight else 60.0
    killed = args.out / "killed"
    shutil.rmtree(killed, ignore_errors=True)
    draw = random.Random(args.seed)
    for number in range(args.kills):
        after = draw.uniform(0.15, 0.9) * length
        process = start(args, killed)
        try:
            process.wait(after)
            print(f"kill {number + 1}: the run ended before {after:.1f} s")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"kill {number + 1}: after {after:.1f} s, {where(killed)}", flush=True)
    finish(args, killed)
    faults = differences(straight, killed)
    print("\n".join(faults) or f"{len(compared(straight))} files equal byte for byte")
    sys.exit(1 if faults else 0)


def start(args: argparse.Namespace, workdir: pathlib.Path) -> subprocess.Popen:
    command = [sys.executable, "launch/run.py", "--config", args.config, "--workdir", str(workdir)]
    return subprocess.Popen(
        command + args.overrides, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finish(args: argparse.Namespace, workdir: pathlib.Path) -> None:
    process = start(args, workdir)
    _, said = process.communicate()
    if process.returncode:
        sys.exit(f"{workdir}: exit {process.returncode}: {said.decode()[-500:]}")


def where(workdir: pathlib.Path) -> str:
    """Says how far the run had come."""
    logs = sorted(workdir.glob("*/metrics.jsonl"))
    if not logs:
        return "before the first step"
    steps = len(logs[-1].read_bytes().splitlines())
    return f"{logs[-1].parent.name} step {steps}"


def compared(workdir: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        path.relative_to(workdir)
        for path in workdir.rglob("*.json*")
        if "checkpoints" not in path.parts and path.name != "timing.jsonl"
    )


def differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
    faults = [
        f"{name}: only in one of the runs" for name in set(compared(one)) ^ set(compared(other))
    ]
    for name in set(compared(one)) & set(compared(other)):
        if (one / name).read_bytes() != (other / name).read_bytes():
            faults.append(f"{name}: differs")
    return sorted(faults)


if __name__ == "__main__":
    main()
