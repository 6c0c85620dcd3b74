"""Mesh, rules and parameter declarations: sharding as data, passed explicitly."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nemocascade_jax.config import MeshConfig, RulesConfig
from nemocascade_jax.errors import InputError

Params = Any  # nested dicts and lists of arrays
Init = Callable[[jax.Array, tuple[int, ...]], jax.Array]


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """The one declaration of a weight: init, sharding, checkpoint and counts all follow from it."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # logical names, one per dimension
    init: Init

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.axes), (self.shape, self.axes)


@dataclasses.dataclass(frozen=True)
class Shard:
    """Lays activations over a mesh by logical names; without a mesh it leaves them alone."""

    mesh: Mesh | None = None
    rules: RulesConfig | None = None

    def __call__(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """Returns `x` constrained to the sharding that the rules give its axes."""
        if self.mesh is None or self.rules is None:
            return x
        laid = NamedSharding(self.mesh, partition(axes, self.rules))
        return jax.lax.with_sharding_constraint(x, laid)

    def local(
        self,
        function: Callable[..., jax.Array],
        inputs: Sequence[tuple[str | None, ...]],
        output: tuple[str | None, ...],
    ) -> Callable[..., jax.Array]:
        """Returns `function` applied by each device to its own part of inputs laid by these axes.

        An axis named None is whole on every device; gradients of such inputs are summed.
        """
        if self.mesh is None or self.rules is None:
            return function
        parts = tuple(partition(axes, self.rules) for axes in inputs)
        # Values are not tracked as varying or not: the hand-written gradients inside do not say it.
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=parts,
            out_specs=partition(output, self.rules),
            check_vma=False,
        )


no_shard = Shard()  # of one device


def normal(std: float) -> Init:
    return lambda key, shape: std * jax.random.normal(key, shape, jnp.float32)


def constant(value: float) -> Init:
    return lambda key, shape: jnp.full(shape, value, jnp.float32)


def map_specs(function: Callable[[str, ParamSpec], Any], specs: Any, path: str = "") -> Any:
    """Maps `function(path, spec)` over a tree of specs; paths read `units/0/1/w_up`."""
    if isinstance(specs, ParamSpec):
        return function(path, specs)
    join = f"{path}/" if path else ""
    if isinstance(specs, Mapping):
        return {key: map_specs(function, specs[key], f"{join}{key}") for key in specs}
    return [map_specs(function, entry, f"{join}{index}") for index, entry in enumerate(specs)]


def stack_spec(spec: ParamSpec, repeats: int) -> ParamSpec:
    """Returns the declaration of `repeats` such weights on a leading axis, each drawn by itself."""

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.stack(
            [spec.init(jax.random.fold_in(key, i), shape[1:]) for i in range(shape[0])]
        )

    return ParamSpec((repeats, *spec.shape), ("layers", *spec.axes), init)


def make_mesh(config: MeshConfig) -> Mesh:
    """Returns the device mesh; refuses a shape that the devices at hand do not fill."""
    sizes = tuple(config.shape.values())
    devices = jax.devices()
    if np.prod(sizes) > len(devices):
        said = " x ".join(f"{name} {size}" for name, size in config.shape.items() if size > 1)
        raise InputError(
            f"config.mesh: {said} needs {np.prod(sizes)} devices, {len(devices)} are there; "
            "lower a mesh axis or start with more devices"
        )
    grid = np.array(devices[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(grid, tuple(config.shape))


def partition(axes: tuple[str | None, ...], rules: RulesConfig) -> PartitionSpec:
    """Translates logical names to mesh axes; two names of one array may not meet on one mesh axis."""
    laid: list[Any] = []
    used: dict[str, str] = {}
    for name in axes:
        if name is None:
            laid.append(None)
            continue
        if not hasattr(rules, name):
            raise InputError(f"config.mesh.rules: no rule for the logical axis {name!r}")
        for axis in getattr(rules, name):
            if axis in used:
                raise InputError(
                    f"config.mesh.rules: {used[axis]!r} and {name!r} of one array are both laid over {axis!r}"
                )
            used[axis] = name
        laid.append(tuple(getattr(rules, name)) or None)
    return PartitionSpec(*laid)


def make_shard(mesh: Mesh, rules: RulesConfig) -> Shard:
    """Returns what lays activations over `mesh`; nothing to do on one device."""
    return no_shard if mesh.size == 1 else Shard(mesh, rules)


def param_shardings(specs: Any, mesh: Mesh, rules: RulesConfig) -> Any:
    """Returns a NamedSharding a weight; refuses a dimension that its mesh axes do not divide."""

    def one(path: str, spec: ParamSpec) -> NamedSharding:
        laid = partition(spec.axes, rules)
        for size, name in zip(spec.shape, spec.axes, strict=True):
            axes = getattr(rules, name) if name else ()
            ways = int(np.prod([mesh.shape[axis] for axis in axes]))
            if size % ways:
                raise InputError(
                    f"config.mesh: {path} has {name} = {size}, not divisible by the {ways} devices "
                    f"of {axes}; change config.mesh.rules.{name}"
                )
        return NamedSharding(mesh, laid)

    return map_specs(one, specs)


def init_params(specs: Any, key: jax.Array, shardings: Any = None) -> Params:
    """Draws every weight from its own key (folded with the crc32 of its path), in one jit."""

    def draw(key: jax.Array) -> Params:
        return map_specs(
            lambda path, spec: spec.init(
                jax.random.fold_in(key, zlib.crc32(path.encode())), spec.shape
            ),
            specs,
        )

    return jax.jit(draw, out_shardings=shardings)(key)


def param_count(specs: Any) -> int:
    """Counts the numbers of a spec tree without allocating any."""
    total = 0

    def add(path: str, spec: ParamSpec) -> None:
        nonlocal total
        total += int(np.prod(spec.shape, dtype=np.int64))

    map_specs(add, specs)
    return total
