"""Optimizers: one row each, with the bytes of its state and of its update; and the matrices that Muon orthogonalises.

What a stack states of Adam (`adam_bytes`, `optimizer_bytes`) holds two fp32 moments, 8 bytes a weight, read and written once a
step. Another optimizer has other state in their place; the fp32 weights beside it stay.
"""

from typing import Final, NamedTuple

from sim_core.models.compressed import POOLED, overlap_of
from sim_core.models.description import (
    ATTENTION,
    COMPRESSED,
    HEAD,
    LAYER,
    MLP,
    MTP,
    RECURRENT,
    Compressed,
    Lora,
    Model,
    Recurrent,
    Unit,
)
from sim_core.models.recurrent import sizes_of
from sim_core.models.weights import EXPERT, KV_HEADS, REPLICATED, TENSOR

MOMENTS: Final = 8.0
"""Bytes of Adam's two fp32 moments."""


class Optimizer(NamedTuple):
    """What an optimizer keeps and moves of a weight, in bytes, where Adam keeps MOMENTS and moves twice as many."""

    name: str
    state: float  # of a weight
    factored: float = 0.0  # of each row and each column of a matrix; a weight that is in no matrix keeps as many
    traffic: float = 0.0  # of a weight besides reading and writing its state
    orthogonal: bool = False  # only matrices have this state, and are orthogonalised; all else is Adam's


ROWS: Final = (
    Optimizer("adamw", MOMENTS),
    # momentum in fp32; the matrix is normed, cast, cast back and scaled by kernels of their own (4 + 8 + 6 + 6 + 8 bytes; count
    # of NVIDIA-NeMo/Emerging-Optimizers, orthogonalized_optimizers/muon_utils.py, newton_schulz)
    Optimizer("muon", 4.0, traffic=32.0, orthogonal=True),
    Optimizer("sgd_momentum", 4.0),
    # means of squares of rows and columns, no momentum (arXiv 1804.04235, algorithm 4); gradients are read for the means and
    # the update once more for its root mean square (count)
    Optimizer("adafactor", 0.0, factored=4.0, traffic=8.0),
    # two moments of 8 bits with an fp32 scale for each block of 256 (arXiv 2110.02861; blocks as in bitsandbytes 0.43)
    Optimizer("adam8bit", 2.0 + 2 * 4.0 / 256),
)
OPTIMIZERS: Final = tuple(row.name for row in ROWS)
ADAMW, MUON = OPTIMIZERS.index("adamw"), OPTIMIZERS.index("muon")
MUON_TP_MODES: Final = ("blockwise", "duplicated", "distributed")
BLOCKWISE, DUPLICATED, DISTRIBUTED = range(len(MUON_TP_MODES))
"""How Muon treats a matrix that tensor parallelism divides (Megatron-LM's --muon-tp-mode): each part by itself; the whole one,
gathered, on every rank; or with the small product summed over the ranks in each step."""
NS_STEPS: Final = 5
"""Steps of Newton-Schulz (Megatron-LM's --muon-num-ns-steps)."""


class Matrix(NamedTuple):
    """Weight matrices of a unit that an optimizer sees one by one: `number` of `rows` outputs x `columns` inputs each."""

    rows: int
    columns: int
    sharding: int  # of sim_core.models.weights
    by_rows: bool = True  # tensor parallelism divides the rows, else the columns
    number: int = 1


def matrices_of(model: Model, unit: Unit) -> tuple[Matrix, ...]:
    """The trained matrices of one unit but for embedding, positions and head, which Muon leaves to Adam.

    As Megatron-LM stores them (core/optimizer/emerging_optimizers.py): queries, keys, values apart (--muon-split-qkv), both
    halves of a gated MLP as one, each expert by itself.
    """
    joined = [Matrix(model.residual_streams, model.residual_streams * model.hidden, REPLICATED)]
    if unit.kind == HEAD and model.residual_streams > 1 and not model.lora:
        return tuple(joined)
    if unit.kind not in (LAYER, MTP):
        return ()
    if model.lora:
        return _adapters(model, unit, model.lora)
    h = model.hidden
    found = list(_attention(model)) if unit.mixer == ATTENTION else []
    if unit.mixer == RECURRENT and model.recurrent:
        found += _recurrent(h, model.recurrent)
    if unit.mixer == COMPRESSED and model.compressed:
        found += _compressed(model, unit, model.compressed)
    if model.residual_streams > 1:
        n = model.residual_streams
        found.append(Matrix((n + 2) * n, n * h, REPLICATED, number=unit.blocks))
        found += joined if unit.kind == MTP else []
    if unit.channel == MLP:
        found += _experts(model) if unit.moe else _mlp(model, h, model.ffn or 0)
    return (*found, Matrix(h, 2 * h, TENSOR)) if unit.kind == MTP else tuple(found)


def _attention(model: Model) -> tuple[Matrix, ...]:
    h, a, k, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    output = Matrix(h, a * model.v_head_dim, TENSOR, by_rows=False)
    if not model.mla:
        queries = Matrix(a * d, h, TENSOR, number=2 if model.output_gate else 1)
        return queries, Matrix(k * d, h, KV_HEADS, number=2), output
    mla, indexer = model.mla, model.indexer
    down = [Matrix(mla.q_rank, h, REPLICATED)] if mla.q_rank else []
    down.append(Matrix(mla.kv_rank + mla.rope_head_dim, h, REPLICATED))
    up = Matrix(a * d, mla.q_rank or h, TENSOR), Matrix(a * (mla.nope_head_dim + mla.v_head_dim), mla.kv_rank, TENSOR)
    if indexer:
        down += [Matrix(indexer.heads * indexer.head_dim, mla.q_rank or h, REPLICATED)]
        down += [Matrix(indexer.head_dim, h, REPLICATED), Matrix(indexer.heads, h, REPLICATED)]
    return *down, *up, output


def _compressed(model: Model, unit: Unit, mixer: Compressed) -> list[Matrix]:
    h, a, d = model.hidden, model.heads, model.head_dim
    found = [Matrix(mixer.q_rank, h, REPLICATED), Matrix(d, h, REPLICATED), Matrix(a * d, mixer.q_rank, TENSOR)]
    pools = [overlap_of(mixer, unit.ratio) * d]
    if model.indexer and unit.ratio == mixer.chosen:
        indexer = model.indexer
        found += [Matrix(indexer.heads * indexer.head_dim, mixer.q_rank, REPLICATED), Matrix(indexer.heads, h, REPLICATED)]
        pools.append(2 * indexer.head_dim)
    found += [Matrix(width, h, REPLICATED, number=POOLED) for width in pools if width]
    grouped = Matrix(mixer.out_rank, a * d // mixer.out_groups, TENSOR, number=mixer.out_groups)
    return [*found, grouped, Matrix(h, mixer.out_groups * mixer.out_rank, TENSOR, by_rows=False)]


def _recurrent(h: int, mixer: Recurrent) -> list[Matrix]:
    sizes = sizes_of(mixer)
    found = [Matrix(sizes.projected, h, TENSOR), Matrix(h, sizes.inner, TENSOR, by_rows=False)]
    if sizes.low_rank:
        found += [Matrix(sizes.low_rank, h, REPLICATED, number=2), Matrix(sizes.inner, sizes.low_rank, TENSOR, number=2)]
    return found


def _mlp(model: Model, width: int, ffn: int, sharding: int = TENSOR, number: int = 1) -> list[Matrix]:
    first = Matrix((2 if model.gated else 1) * ffn, width, sharding, number=number)
    return [first, Matrix(width, ffn, sharding, by_rows=False, number=number)]


def _experts(model: Model) -> list[Matrix]:
    experts, h = model.experts, model.hidden
    if experts is None:
        raise ValueError(f"{model.name} has no experts")
    found = [Matrix(experts.count, h, REPLICATED), *_mlp(model, experts.latent or h, experts.ffn, EXPERT, experts.count)]
    if experts.latent:
        found += [Matrix(experts.latent, h, TENSOR), Matrix(h, experts.latent, TENSOR, by_rows=False)]
    if experts.shared_gate:
        found.append(Matrix(1, h, REPLICATED))
    return found + (_mlp(model, h, experts.shared_ffn) if experts.shared_ffn else [])


def _adapters(model: Model, unit: Unit, lora: Lora) -> tuple[Matrix, ...]:
    """A narrow pair beside each target; the side of the target that is divided is divided here, too."""
    h, a, d = model.hidden, model.heads, model.head_dim
    divided: dict[str, int] = {}
    if unit.mixer == ATTENTION:
        divided |= {"qkv": (a + 2 * model.kv_heads) * d, "projection": a * model.v_head_dim}
    if unit.channel == MLP and not unit.moe:
        divided |= {"fc1": (2 if model.gated else 1) * (model.ffn or 0), "fc2": model.ffn or 0}
    found = []
    for name in (name for name in lora.targets if name in divided):
        if name in ("qkv", "fc1"):
            found += [Matrix(lora.rank, h, REPLICATED), Matrix(divided[name], lora.rank, TENSOR)]
        else:
            found += [Matrix(lora.rank, divided[name], TENSOR, by_rows=False), Matrix(h, lora.rank, REPLICATED)]
    return tuple(found)


class Local(NamedTuple):
    """A matrix as one rank has it: what a step of Newton-Schulz does with it, and how many weights of it the rank owns."""

    products: tuple[tuple[float, float, float], ...]  # m, n, k of each step
    cost: int  # by which ranks are balanced: the long side times the square of the short one
    elements: int
    gathered: float = 0.0  # bytes of the group's matrix, once
    summed: float = 0.0  # bytes of the small product, in each step


def local_of(matrix: Matrix, parts: int, mode: int) -> Local:
    """A matrix of which each of `parts` tensor-parallel ranks holds an equal part.

    X X^T, A A and B X of each step: 4 m^2 n + 2 m^3 FLOPs with m the short side (Megatron-LM core/optimizer/
    emerging_optimizers.py; Emerging-Optimizers, muon_utils.py). Gathered in fp32, summed in bf16, in which products run.
    """
    divided, other = (matrix.rows, matrix.columns) if matrix.by_rows else (matrix.columns, matrix.rows)
    mine = max(divided // parts, 1)
    own = min(mine, other), max(mine, other)
    short, long = own
    gathered = summed = 0.0
    if parts > 1 and mode == DUPLICATED:
        short, long = min(divided, other), max(divided, other)
        gathered = 4.0 * divided * other
    elif parts > 1 and mode == DISTRIBUTED:  # the side that is not divided, whichever is the shorter one
        short, long, summed = other, mine, 2.0 * other * other
    m, n = float(short), float(long)
    products = ((m, m, n), (m, m, m), (m, n, m))
    return Local(products, own[1] * own[0] ** 2, mine * other, gathered, summed)
