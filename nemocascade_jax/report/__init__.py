"""A workdir as one self-contained HTML file: scores, lineage, curves, rollouts, config; no jax."""

from __future__ import annotations

import importlib.resources
import json
import math
import pathlib
import re
from typing import Any

from nemocascade_jax.errors import InputError
from nemocascade_jax.metrics import write_text
from nemocascade_jax.report import curves, samples, story
from nemocascade_jax.report.workdir import open_workdir

ROLLOUT_MB = 6.0
SLOT = "__REPORT_DATA__"


def write_report(
    workdir: pathlib.Path, out: pathlib.Path | None = None, rollout_mb: float = ROLLOUT_MB
) -> pathlib.Path:
    """Writes the report of a finished, stopped or running workdir and returns its path.

    The same workdir gives the same bytes. At most `rollout_mb` megabytes of rollouts are embedded.
    Raises InputError when the folder holds neither config.json nor cascade.json.
    """
    if not math.isfinite(rollout_mb) or rollout_mb < 0:
        raise InputError(f"rollout_mb: {rollout_mb}; write 0 (none) or a number of megabytes")
    out = workdir / "report.html" if out is None else out
    data = report_data(workdir, rollout_mb)
    template = importlib.resources.files("nemocascade_jax.assets").joinpath("report.html")
    before, after = template.read_text(encoding="utf-8").split(SLOT)
    write_text(out, before + embed(data) + after)
    return out


def report_data(workdir: pathlib.Path, rollout_mb: float = ROLLOUT_MB) -> dict[str, Any]:
    """Returns what the page shows, as plain data."""
    work = open_workdir(workdir)
    data = story.tell(work) | {
        "curves": curves.of_stages(work),
        "rollouts": samples.choose(work, int(rollout_mb * 1e6)),
        "config": work.config,
    }
    return data | {"notes": work.notes}  # last: reading adds to them


def embed(data: Any) -> str:
    """Returns strict JSON that cannot end or confuse the <script> element around it."""
    text = json.dumps(without_nan(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def without_nan(value: Any) -> Any:
    """Returns the value with null for each number that is not finite, which JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return value
