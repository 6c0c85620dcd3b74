"""Writes docs/parity.md: how far this model is from the published one's reference outputs.

python tools/parity_table.py --fixtures DIR [--out docs/parity.md]

DIR holds `nemotron_h_tiny` and `qwen3_moe_tiny`: checkpoints in several dialects and what the published
code computed for them. Ends with status 1 when an array is further off than the tests allow.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = {
    "nemotron_h_tiny": ("published", "published_sharded", "fused", "published_bf16"),
    "qwen3_moe_tiny": ("published", "published_sharded"),
}
HEAD = """# Distance from the published model

Made by `python tools/parity_table.py --fixtures DIR` on {platform}. Each number is the largest absolute
difference between this model's array and the reference, which is what transformers {version} computed in
float32 (with its lower limit on the time step taken out, as in the published serving code). Arrays of
whole numbers (token ids, chosen experts) count the entries that differ; a gradient's difference is
divided by the tensor's largest entry. The tests (`tests/test_published.py`) allow {logits} on logits and
{grads} on gradients, and nothing on whole numbers.

The dialects are those that checkpoints of these families come in: `published` (one file, the hub's
names), `published_sharded` (three files and an index), `fused` (stacked experts, other prefix) and
`published_bf16` (the hub's types). The last one is another model, since its weights are rounded: it is
compared with its own reference in float32 arithmetic, and by the mean KL divergence (nats) from the
model that was not rounded.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "parity.md")
    args = parser.parse_args()
    for name in FOLDERS:
        if not (args.fixtures / name / "oracle.npz").is_file():
            print(f"--fixtures: {args.fixtures / name}/oracle.npz: no such file", file=sys.stderr)
            return 2
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(ROOT / "tests"))
    import json

    import jax

    from tolerances import PUBLISHED_GRAD_SHARE, PUBLISHED_LOGITS

    meta = json.loads((args.fixtures / "nemotron_h_tiny" / "meta.json").read_text())
    text = HEAD.format(
        platform=f"{jax.default_backend().upper()}, jax {jax.__version__}",
        version=meta["transformers"],
        logits=f"{PUBLISHED_LOGITS.atol:g}",
        grads=f"{PUBLISHED_GRAD_SHARE:g}",
    )
    far = []
    for name, dialects in FOLDERS.items():
        table, too_far = section(args.fixtures / name, dialects)
        text += table
        far += too_far
    args.out.write_text(text)
    print(text)
    for line in far:
        print(f"too far: {line}", file=sys.stderr)
    return 1 if far else 0


def section(folder: pathlib.Path, dialects: tuple[str, ...]) -> tuple[str, list[str]]:
    """Returns the table of one fixture folder, and what is further off than the tests allow."""
    from published import differences

    from tolerances import PUBLISHED_GRAD_SHARE, PUBLISHED_LOGITS

    found = {dialect: differences(folder, dialect) for dialect in dialects}
    names = list(dict.fromkeys(name for of_one in found.values() for name in of_one))
    lines = ["", f"## {folder.name}", "", "| array | " + " | ".join(dialects) + " |"]
    lines.append("|---|" + "---:|" * len(dialects))
    far = []
    for name in names:
        cells = [shown(found[dialect].get(name)) for dialect in dialects]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        limit = PUBLISHED_GRAD_SHARE if name.startswith("grad/") else PUBLISHED_LOGITS.atol
        for dialect in dialects:
            value = found[dialect].get(name, 0.0)
            if not name.startswith("kl/") and not value <= limit:
                far.append(f"{folder.name}/{dialect} {name}: {value:g}, allowed {limit:g}")
    return "\n".join(lines) + "\n", far


def shown(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:.1e}"


if __name__ == "__main__":
    sys.exit(main())
