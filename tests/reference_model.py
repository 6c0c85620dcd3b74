"""A second implementation: published tensors and config to logits, one token at a time, in float64.

It shares nothing with the package: names are read as stored, the recurrence is a loop over tokens, and
every expert is looked up one by one. Slow and plain on purpose.
"""

import numpy as np


def reference_logits(tensors: dict, config: dict, tokens: np.ndarray) -> np.ndarray:
    """Returns the logits [T, V] of one row under a published checkpoint."""
    weights = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    run = {"nemotron_h": nemotron_h, "qwen3_moe": blocks, "qwen3": blocks, "llama": blocks}
    return run[config["model_type"]](weights, config, tokens)


def nemotron_h(weights, config, tokens):
    x = weights["backbone.embeddings.weight"][tokens]
    eps = config["layer_norm_epsilon"]
    mixers = {"M": mamba, "*": attention, "E": sigmoid_moe, "-": relu2_mlp}
    for number, letter in enumerate(config["hybrid_override_pattern"]):
        layer = below(weights, f"backbone.layers.{number}.")
        normed = rms_norm(x, layer["norm.weight"], eps)
        x = x + mixers[letter](below(layer, "mixer."), normed, config)
    return (
        rms_norm(x, weights["backbone.norm_f.weight"], eps) @ head(weights, "backbone.embeddings").T
    )


def blocks(weights, config, tokens):
    x = weights["model.embed_tokens.weight"][tokens]
    eps = config["rms_norm_eps"]
    for number in range(config["num_hidden_layers"]):
        layer = below(weights, f"model.layers.{number}.")
        normed = rms_norm(x, layer["input_layernorm.weight"], eps)
        x = x + attention(below(layer, "self_attn."), normed, config, rotary=True)
        normed = rms_norm(x, layer["post_attention_layernorm.weight"], eps)
        mlp = below(layer, "mlp.")
        x = x + (softmax_moe if "gate.weight" in mlp else gated_mlp)(mlp, normed, config)
    return rms_norm(x, weights["model.norm.weight"], eps) @ head(weights, "model.embed_tokens").T


def below(weights, prefix):
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def head(weights, table):
    return weights.get("lm_head.weight", weights[f"{table}.weight"])


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def mamba(w, u, config):
    """S <- exp(dt A) S + dt x (outer) B; y = S C + D x; gate, then norm a group."""
    heads, width, state = (
        config[k] for k in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size")
    )
    groups, taps = config["n_groups"], config["conv_kernel"]
    inner = heads * width
    channels = inner + 2 * groups * state
    projected = u @ w["in_proj.weight"].T
    gate, raw, dt = np.split(projected, [inner, inner + channels], axis=1)
    step = np.logaddexp(0, dt + w["dt_bias"])
    decay = -np.exp(w["A_log"])
    held = np.zeros((heads, width, state))
    out = np.zeros((len(u), inner))
    for t in range(len(u)):
        window = w["conv1d.bias"].copy()
        for tap in range(taps):
            at = t - (taps - 1) + tap
            if at >= 0:
                window += w["conv1d.weight"][:, 0, tap] * raw[at]
        x, b, c = np.split(silu(window), [inner, inner + groups * state])
        x, b, c = x.reshape(heads, width), b.reshape(groups, state), c.reshape(groups, state)
        for h in range(heads):
            g = h // (heads // groups)
            held[h] = np.exp(step[t, h] * decay[h]) * held[h] + step[t, h] * np.outer(x[h], b[g])
            out[t, h * width : (h + 1) * width] = held[h] @ c[g] + w["D"][h] * x[h]
    gated = (out * silu(gate)).reshape(len(u), groups, -1)
    normed = rms_norm(gated, 1.0, config["layer_norm_epsilon"]).reshape(len(u), inner)
    return normed * w["norm.weight"] @ w["out_proj.weight"].T


def attention(w, x, config, rotary=False):
    heads, kv_heads, width = (
        config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    q = (x @ w["q_proj.weight"].T).reshape(len(x), heads, width)
    k = (x @ w["k_proj.weight"].T).reshape(len(x), kv_heads, width)
    v = (x @ w["v_proj.weight"].T).reshape(len(x), kv_heads, width)
    if "q_norm.weight" in w:
        q = rms_norm(q, w["q_norm.weight"], config["rms_norm_eps"])
        k = rms_norm(k, w["k_norm.weight"], config["rms_norm_eps"])
    if rotary:
        q, k = turn(q, config["rope_theta"]), turn(k, config["rope_theta"])
    out = np.zeros((len(x), heads, width))
    for t in range(len(x)):
        for h in range(heads):
            of = h // (heads // kv_heads)
            share = softmax(k[: t + 1, of] @ q[t, h] / np.sqrt(width))
            out[t, h] = share @ v[: t + 1, of]
    return out.reshape(len(x), -1) @ w["o_proj.weight"].T


def turn(x, theta):
    """Rotates the pair (i, i + half) of a head by position x theta^(-i / half)."""
    half = x.shape[-1] // 2
    out = np.empty_like(x)
    for t in range(len(x)):
        for i in range(half):
            angle = t * theta ** (-i / half)
            a, b = x[t, :, i], x[t, :, i + half]
            out[t, :, i] = a * np.cos(angle) - b * np.sin(angle)
            out[t, :, i + half] = b * np.cos(angle) + a * np.sin(angle)
    return out


def relu2_mlp(w, x, config=None):
    return np.maximum(x @ w["up_proj.weight"].T, 0) ** 2 @ w["down_proj.weight"].T


def gated_mlp(w, x, config=None):
    gated = silu(x @ w["gate_proj.weight"].T) * (x @ w["up_proj.weight"].T)
    return gated @ w["down_proj.weight"].T


def sigmoid_moe(w, x, config):
    scores = 1 / (1 + np.exp(-(x @ w["gate.weight"].T)))
    choice = scores + w["gate.e_score_correction_bias"]
    inside = x @ w["fc1_latent_proj.weight"].T if "fc1_latent_proj.weight" in w else x
    out = np.zeros_like(inside)
    for t in range(len(x)):
        best = np.argsort(-choice[t], kind="stable")[: config["num_experts_per_tok"]]
        total = scores[t, best].sum() + 1e-20 if config["norm_topk_prob"] else 1.0
        for e in best:
            share = config["routed_scaling_factor"] * scores[t, e] / total
            out[t] += share * relu2_mlp(below(w, f"experts.{e}."), inside[t])
    if "fc2_latent_proj.weight" in w:
        out = out @ w["fc2_latent_proj.weight"].T
    return out + relu2_mlp(below(w, "shared_experts."), x)


def softmax_moe(w, x, config):
    scores = softmax(x @ w["gate.weight"].T)
    out = np.zeros_like(x)
    for t in range(len(x)):
        best = np.argsort(-scores[t], kind="stable")[: config["num_experts_per_tok"]]
        total = scores[t, best].sum() if config["norm_topk_prob"] else 1.0
        for e in best:
            out[t] += scores[t, e] / total * gated_mlp(below(w, f"experts.{e}."), x[t])
    return out
