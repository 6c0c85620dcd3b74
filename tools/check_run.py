"""Checks a finished cascade's workdir: files have their shape, and the score rose.

python tools/check_run.py --workdir runs/ci --stage if_rl --domain instruction_following
"""

import argparse
import json
import pathlib
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--stage", default="if_rl")
    parser.add_argument("--domain", default="instruction_following")
    parser.add_argument(
        "--errors", type=float, default=3.0, help="paired standard errors it must rise by"
    )
    args = parser.parse_args()
    faults = check_files(args.workdir) + check_rise(args)
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


def check_files(workdir: pathlib.Path) -> list[str]:
    ledger = json.loads((workdir / "cascade.json").read_text())
    json.loads((workdir / "config.json").read_text())
    faults = []
    for index, (name, entry) in enumerate(
        sorted(ledger["stages"].items(), key=lambda kv: ledger["order"].index(kv[0])), 1
    ):
        folder = workdir / f"{index:02d}_{name}"
        steps = [line["progress/step"] for line in lines(folder / "metrics.jsonl")]
        if steps != list(range(1, entry["step"] + 1)):
            faults.append(
                f"{folder}/metrics.jsonl: steps {steps[:3]}..{steps[-3:]}, expected 1..{entry['step']}"
            )
        if not (folder / "checkpoints" / str(entry["step"]) / "model" / "model.json").is_file():
            faults.append(f"{folder}: the last checkpoint is not there")
        if entry["kind"] != "sft":
            faults += check_rollouts(folder, entry["step"])
        faults += check_scores(folder, name, ledger)
    if not (workdir / "report.html").is_file():
        faults.append(f"{workdir}: no report.html")
    return faults


def check_scores(folder: pathlib.Path, stage: str, ledger: dict) -> list[str]:
    """Every checkpoint that is there has a score on every domain; every best one is there."""
    faults = []
    steps = sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))
    scored = {
        (score["step"], score["domain"])
        for score in ledger["scores"]
        if score["stage"] == stage and score["rows"] == "selection"
    }
    for step in steps:
        for domain in ledger["best"]:
            if (step, domain) not in scored:
                faults.append(f"{folder}/checkpoints/{step}: cascade.json has no score of {domain}")
    for domain, best in ledger["best"].items():
        if best["stage"] == stage and best["step"] not in steps:
            faults.append(f"{folder}/checkpoints/{best['step']}: best of {domain}, and not kept")
    return faults


def check_rollouts(folder: pathlib.Path, steps: int) -> list[str]:
    """Every drawn row is in exactly one step, used or named otherwise, none left out."""
    draws: list[int] = []
    for step in range(1, steps + 1):
        draws += sorted({record["draw"] for record in lines(folder / "rollouts" / f"{step}.jsonl")})
    if draws != list(range(len(draws))):
        return [f"{folder}/rollouts: drawn rows are not 0..{len(draws) - 1}, each once"]
    return []


def check_rise(args: argparse.Namespace) -> list[str]:
    ledger = json.loads((args.workdir / "cascade.json").read_text())
    for found in ledger["differences"]:
        about = (found["stage"], found["domain"], found["mode"], found["rows"])
        if about == (args.stage, args.domain, "sampled", "selection"):
            rise, error = found["difference"], found["standard_error"]
            print(f"{args.stage}: {args.domain} {rise:+.3f}, paired standard error {error:.3f}")
            enough = rise >= args.errors * error and rise > 0
            return (
                []
                if enough
                else [f"{args.domain} rose by {rise:.3f}, less than {args.errors} x {error:.3f}"]
            )
    return [f"cascade.json has no difference of {args.stage} on {args.domain}"]


def lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
