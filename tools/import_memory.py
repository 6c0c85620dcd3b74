"""Shows what importing a sharded checkpoint costs in host memory, on a mesh of four CPU devices.

python tools/import_memory.py [--gb 2]

Writes a synthetic nemotron_h checkpoint of random bfloat16 numbers into a temporary folder, imports it
in a fresh process that samples its own anonymous memory, and prints one JSON object: bytes of the
checkpoint, of the arrays as held, and the peak. The checkpoint is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALLOWED = 0.6e9  # beyond the arrays: the interpreter, jax, and blocks on their way
DEVICES = 4

CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*EME",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "rescale_prenorm_residual": True,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "mamba_num_heads": 16,
    "mamba_head_dim": 64,
    "ssm_state_size": 64,
    "n_groups": 4,
    "conv_kernel": 4,
    "chunk_size": 64,
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "time_step_floor": 1e-4,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
    "moe_shared_expert_intermediate_size": 1024,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
EXPERT_BYTES = 3 * 2 * 2 * 1024 * 1024  # one expert in each of the three MoE layers, bfloat16
OTHER_BYTES = 160e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gb", type=float, default=2.0, help="size of the checkpoint, 10^9 bytes")
    parser.add_argument("--measure", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(pathlib.Path(args.measure))))
        return
    with tempfile.TemporaryDirectory(prefix="import_memory-") as folder:
        size = write_checkpoint(pathlib.Path(folder), args.gb)
        again = [sys.executable, __file__, "--measure", folder]
        done = subprocess.run(again, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    found = {"checkpoint_bytes": size} | found
    print(json.dumps(found, indent=2))
    sys.exit(0 if found["peak_bytes"] < found["held_bytes"] + ALLOWED else 1)


def write_checkpoint(folder: pathlib.Path, gb: float) -> int:
    """Writes a checkpoint of about `gb` in eight shards; returns its bytes."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from nemocascade_jax.formats.families import model_config_from_hf
    from nemocascade_jax.formats.tensor_names import hub_tensors

    experts = max(8, 4 * round((gb * 1e9 - OTHER_BYTES) / EXPERT_BYTES / 4))
    config = CONFIG | {"n_routed_experts": experts}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = hub_tensors(model_config_from_hf(config))
    rng = np.random.default_rng(0)
    table, size, count = {}, 0, 8
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        held = {}
        # In turns, so that the experts of every layer lie in all the files.
        for tensor in tensors[number::count]:
            kind = np.float32 if tensor.kept_float32 else ml_dtypes.bfloat16
            held[tensor.name] = rng.standard_normal(tensor.shape, np.float32).astype(kind)
            size += held[tensor.name].nbytes
        save_file(held, folder / file)
        table |= dict.fromkeys(held, file)
    index = {"metadata": {"total_size": size}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return size


def measure(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the arrays' bytes on all devices and the highest anonymous memory of this process."""
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    from nemocascade_jax.config import MeshConfig, build
    from nemocascade_jax.configs.common import mesh
    from nemocascade_jax.formats import hf
    from nemocascade_jax.formats.families import model_config_from_hf
    from nemocascade_jax.models.hybrid import model_specs
    from nemocascade_jax.sharding import make_mesh, param_shardings

    cfg = model_config_from_hf(hf.read_config(folder))
    laid = build(MeshConfig, mesh(fsdp=DEVICES))
    shardings = param_shardings(model_specs(cfg), make_mesh(laid), laid.rules)
    over, peak = threading.Event(), [0]

    def watch() -> None:
        while not over.wait(0.005):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    before = anonymous_bytes()
    watcher.start()
    began = time.monotonic()
    params = jax.block_until_ready(hf.load_hf(folder, cfg, shardings))
    seconds = time.monotonic() - began
    over.set()
    watcher.join()
    held = sum(
        shard.data.nbytes for leaf in jax.tree.leaves(params) for shard in leaf.addressable_shards
    )
    return {
        "held_bytes": held,
        "before_bytes": before,
        "after_bytes": anonymous_bytes(),
        "peak_bytes": peak[0],
        "above_held_bytes": peak[0] - held,
        "seconds": round(seconds, 1),
    }


def anonymous_bytes() -> int:
    """Returns the memory of this process that no file stands behind."""
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
