"""Sharding as data: rules, meshes, declarations, and drawing weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from nemocascade_jax.config import MeshConfig, RulesConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.sharding import (
    ParamSpec,
    constant,
    init_params,
    make_mesh,
    make_shard,
    map_specs,
    no_shard,
    normal,
    param_count,
    param_shardings,
    partition,
    stack_spec,
)


def rules(**laid):
    names = [field.name for field in dataclasses.fields(RulesConfig)]
    return RulesConfig(**(dict.fromkeys(names, ()) | laid))


def mesh_config(data=1, fsdp=1, expert=1, **laid):
    return MeshConfig(data=data, fsdp=fsdp, expert=expert, tensor=1, context=1, rules=rules(**laid))


def test_partition_translates_names():
    laid = rules(batch=("data", "fsdp"), mlp=("tensor",))
    assert partition(("batch", None, "mlp", "seq"), laid) == PartitionSpec(
        ("data", "fsdp"), None, ("tensor",), None
    )


def test_two_names_on_one_mesh_axis_are_refused():
    laid = rules(expert=("fsdp",), embed=("fsdp",))
    with pytest.raises(
        InputError, match="'expert' and 'embed' of one array are both laid over 'fsdp'"
    ):
        partition(("expert", "embed", "mlp"), laid)


def test_a_name_without_a_rule_is_refused():
    with pytest.raises(InputError, match="no rule for the logical axis 'width'"):
        partition(("width",), rules())


def test_a_size_that_devices_do_not_divide_is_refused():
    config = mesh_config(fsdp=4, embed=("fsdp",))
    specs = {"units": [[{"w_up": ParamSpec((6, 8), ("embed", "mlp"), constant(0.0))}]]}
    message = r"units/0/0/w_up has embed = 6, not divisible by the 4 devices .*rules.embed"
    with pytest.raises(InputError, match=message):
        param_shardings(specs, make_mesh(config), config.rules)


def test_a_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(InputError, match="data 4 x fsdp 4 needs 16 devices, 8 are there"):
        make_mesh(mesh_config(data=4, fsdp=4))


def test_shard_is_the_identity_on_one_device():
    x = jnp.ones((2, 3))
    shard = make_shard(make_mesh(mesh_config()), rules(batch=("data",)))
    assert shard(x, "batch", "no such name") is x
    assert no_shard(x, "batch", None) is x


def test_shard_lays_an_activation_over_its_axes():
    config = mesh_config(data=2, fsdp=2, batch=("data", "fsdp"))
    shard = make_shard(make_mesh(config), config.rules)
    out = jax.jit(lambda x: shard(x * 2, "batch", "seq"))(jnp.ones((8, 3)))
    assert {piece.data.shape for piece in out.addressable_shards} == {(2, 3)}


SPECS = {
    "embed": ParamSpec((6, 4), ("vocab", "embed"), normal(0.5)),
    "units": [[{"w": stack_spec(ParamSpec((4, 4), ("embed", "mlp"), normal(1.0)), 3)}]],
}


def test_stacked_weights_are_drawn_one_by_one(key):
    spec = SPECS["units"][0][0]["w"]
    assert spec.shape == (3, 4, 4)
    assert spec.axes == ("layers", "embed", "mlp")
    params = init_params(SPECS, key)
    layers = np.asarray(params["units"][0][0]["w"])
    assert len({layer.tobytes() for layer in layers}) == 3
    # Fewer repeats draw the same first layers: the depth of a model does not move its weights.
    fewer = SPECS | {
        "units": [[{"w": stack_spec(ParamSpec((4, 4), ("embed", "mlp"), normal(1.0)), 2)}]]
    }
    np.testing.assert_allclose(init_params(fewer, key)["units"][0][0]["w"], layers[:2], rtol=1e-6)


def test_weights_depend_on_their_path_and_key_only(key):
    params = init_params(SPECS, key)
    alone = init_params({"embed": SPECS["embed"]}, key)
    np.testing.assert_array_equal(params["embed"], alone["embed"])
    renamed = init_params({"table": SPECS["embed"]}, key)
    assert not np.array_equal(params["embed"], renamed["table"])
    assert not np.array_equal(params["embed"], init_params(SPECS, jax.random.key(1))["embed"])


def test_weights_are_the_same_on_any_mesh(key):
    config = mesh_config(fsdp=4, embed=("fsdp",))
    shardings = param_shardings(SPECS, make_mesh(config), config.rules)
    laid = init_params(SPECS, key, shardings)
    assert {piece.data.shape for piece in laid["embed"].addressable_shards} == {(6, 1)}
    jax.tree.map(np.testing.assert_array_equal, laid, init_params(SPECS, key))


def test_counts_and_paths_follow_the_declarations():
    assert param_count(SPECS) == 6 * 4 + 3 * 4 * 4
    paths = map_specs(lambda path, spec: path, SPECS)
    assert paths == {"embed": "embed", "units": [[{"w": "units/0/0/w"}]]}
