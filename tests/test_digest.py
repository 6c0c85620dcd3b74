"""The weights digest: against exact integers, sensitive to every bit, blind to the mesh."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nemocascade_jax import digest


def by_hand(leaf):
    """The leaf's sum in Python integers."""

    def mix(x):
        x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
        x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
        return x ^ (x >> 16)

    flat = np.asarray(leaf).reshape(-1)
    bits = flat.view(f"uint{8 * flat.dtype.itemsize}")
    return sum(int(b) * (2 * mix(i) + 1) for i, b in enumerate(bits)) % 2**64


def test_leaf_sum_equals_exact_integers(rng):
    """Two lanes of 32 bits with carries give the sum modulo 2^64, for float32 and bfloat16."""
    for shape in [(), (7,), (3, 5, 11), (64, 33)]:
        leaf = rng.normal(size=shape).astype(np.float32)
        for entry in (leaf, -leaf, leaf.astype(ml_dtypes.bfloat16)):
            low, high = digest._leaf_sums([jnp.asarray(entry)])
            assert int(low[0]) | int(high[0]) << 32 == by_hand(entry)


def test_flat_index_carries_into_the_high_lane():
    """An index above 2^32 keeps its high bits: shape (3, 2^17, 2^15 + 1), last element."""
    shape = (3, 2**17, 2**15 + 1)
    high_stride = shape[1] * shape[2]
    place = jnp.full((1,), 2, jnp.uint32)
    low, high = digest._multiply(place, jnp.full((1,), high_stride & 0xFFFFFFFF, jnp.uint32))
    total = int(low[0]) | int(high[0] + place[0] * jnp.uint32(high_stride >> 32)) << 32
    assert total == 2 * high_stride > 2**32


def test_digest_changes_with_every_kind_of_change(rng):
    """One bit, two elements exchanged, a path, a type or a shape: each gives another name."""
    values = rng.normal(size=(4, 6)).astype(np.float32)
    params = {"a": [{"w": jnp.asarray(values)}], "b": jnp.zeros((3,))}
    swapped = values.copy()
    swapped[0, 1], swapped[2, 3] = values[2, 3], values[0, 1]
    variants = [params]
    for bit in range(32):
        bits = values.copy()
        bits.view(np.uint32)[1, 2] ^= np.uint32(1 << bit)
        variants.append({"a": [{"w": jnp.asarray(bits)}], "b": params["b"]})
    variants += [
        {"a": [{"w": jnp.asarray(swapped)}], "b": params["b"]},
        {"a": [{"v": params["a"][0]["w"]}], "b": params["b"]},
        {"a": [{"w": params["a"][0]["w"]}], "b": params["b"].astype(jnp.bfloat16)},
        {"a": [{"w": params["a"][0]["w"].reshape(6, 4)}], "b": params["b"]},
        {"a": [{"w": params["a"][0]["w"]}], "b": -params["b"]},
    ]
    names = [digest.weights_digest(variant) for variant in variants]
    assert len(set(names)) == len(names)
    copy = {"b": jnp.zeros((3,)), "a": [{"w": jnp.asarray(values.copy())}]}
    assert digest.weights_digest(copy) == names[0]


def test_digest_is_the_same_on_every_mesh(rng):
    """Sharded over eight devices, by rows or by columns, the name stays."""
    leaf = jnp.asarray(rng.normal(size=(16, 24)).astype(np.float32))
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    alone = digest.weights_digest({"w": leaf})
    for spec in [PartitionSpec("x", "y"), PartitionSpec(("y", "x")), PartitionSpec(None, "x")]:
        laid = jax.device_put(leaf, NamedSharding(mesh, spec))
        assert digest.weights_digest({"w": laid}) == alone
