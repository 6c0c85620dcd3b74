"""The only place of tolerances. None is ever widened to make a test pass: the cause is found first."""

from typing import NamedTuple


class Tolerance(NamedTuple):
    rtol: float
    atol: float


SAME_F32 = Tolerance(1e-5, 1e-6)  # the same maths
ORDER_F32 = Tolerance(1e-4, 1e-5)  # another order of sums: mesh, chunked scan, cached decode
GRAD_F32 = Tolerance(1e-4, 1e-5)
MESH_SCALAR = Tolerance(1e-5, 0.0)  # loss and gradient norm across meshes
PUBLISHED_LOGITS = Tolerance(0.0, 5e-5)
SAMPLER_GAP = Tolerance(0.0, 1e-4)  # sampler against trainer log-probs
BF16 = Tolerance(1e-2, 1e-2)

BF16_KL = 1e-3  # mean KL between ways to compute a model in bfloat16
PUBLISHED_BF16_KL = 0.02  # what rounding costs a tiny model in the reference implementation itself

PARAMS_MESH_SHARE = 1e-5  # max difference over the tensor's largest entry, after updates
PUBLISHED_GRAD_SHARE = 1e-4  # max difference over the tensor's largest entry
