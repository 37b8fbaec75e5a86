"""Collects the operators of a unit as rows, then stacks them into columns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.documents import Words
from sim_core.models.description import Lora
from sim_core.models.precision import ON_DEVICES, WIDE
from sim_core.models.traffic import RESIDUAL, SCALE, UNFUSED_DROPOUT
from sim_core.terms import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

Number = float | Floats
"""One number for all keys, or one per key."""

GEMM = 0
GROUPED_GEMM = 1
ATTENTION = 2
MEMORY = 3
FUSED = 4
SCAN = 5

NORMED = ("qkv", "fc1")
"""GEMMs whose input is cast by the norm before, in the kernel of the norm."""
GATHERED_INPUTS = ("qkv", "fc1", "shared_fc1", "q_up", "q", "kv_up", "mtp_projection", "mixer_in")
GATHERED_GRADIENTS = ("projection", "fc2", "shared_fc2", "mixer_out")
"""GEMMs whose inputs, and whose outputs' gradients, sequence parallelism gathers."""


class AttentionShape(NamedTuple):
    """Shapes of the flash kernel of a unit; columns [n]. Causal. `window` 0: a query sees all keys before it."""

    sequences: Floats
    queries: Floats  # per sequence
    keys: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: int
    v_head_dim: int
    window: int


class Operators(NamedTuple):
    """The work of one unit on one micro-batch: a row of operators, [ops]; numbers per key, [n, ops].

    A GEMM is C[m, n] = A[m, k] B[k, n], `batch` times (batched, or one per expert of a rank). ATTENTION is one flash kernel
    with the shapes of `attention`. FUSED and SCAN are products whose operands and results stay on the chip: of an attention
    kernel, of a chunked scan. MEMORY moves `bytes` in `kernels` launches; GEMM and ATTENTION are 1 launch, GROUPED_GEMM
    too. `flops` are those executed: the causal half of flash attention, the whole square of unfused.
    """

    names: Words
    kind: Ints
    phase: Ints  # FORWARD, INPUT_GRADIENT or WEIGHT_GRADIENT
    linear: Bools  # a GEMM in the precision of the key; the others are in 16 bits
    core: Bools  # core attention's forward: selective recompute runs it again; full recompute runs every FORWARD
    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    flops: Floats
    bytes: Floats
    kernels: Floats
    attention: AttentionShape | None

    def row(self, name: str, phase: int) -> int:
        """The row of an operator; a name stands once per phase. Raises KeyError."""
        for i, (known, when) in enumerate(zip(self.names, self.phase, strict=True)):
            if known == name and when == phase:
                return i
        raise KeyError(f"{name} in phase {phase}")


class Rows:
    """Operators of one unit, in the order in which they are added."""

    def __init__(self, keys: int, lora: Lora | None = None) -> None:
        self._keys = keys
        self._lora = lora  # all weights but those of adapters are frozen
        self._names: list[str] = []
        self._columns: list[tuple[int, int, bool, bool]] = []
        self._numbers: list[tuple[Number, ...]] = []
        self._attention: AttentionShape | None = None

    def _add(
        self,
        name: str,
        kind: int,
        phase: int,
        *,
        size: tuple[Number, Number, Number] = (0.0, 0.0, 0.0),
        batch: Number = 0.0,
        flops: Number = 0.0,
        moved: Number = 0.0,
        kernels: Number = 1.0,
        core: bool = False,
        linear: bool = False,
    ) -> None:
        self._names.append(name)
        self._columns.append((kind, phase, linear, core))
        self._numbers.append((*size, batch, flops, moved, kernels))

    def gemm(
        self, name: str, m: Number, n: Number, k: Number, *, batch: Number = 1.0, kind: int = GEMM, linear: bool = True
    ) -> None:
        """A GEMM with weights: forward (m, n, k), input gradient (m, k, n), weight gradient (n, k, m) if they are trained."""
        lora = self._lora
        made = [(name, m, n, k, linear, lora is None)]
        pairs = lora.pairs(name) if lora is not None else 0
        if lora is not None and name in lora.targets:
            made += [(f"{name}_lora_a", m, pairs * lora.rank, k, False, True), (f"{name}_lora_b", m, n, lora.rank, False, True)]
        for each, rows, columns, inner, narrow, trained in made:
            sizes = {FORWARD: (rows, columns, inner), INPUT_GRADIENT: (rows, inner, columns)}
            for phase, size in (sizes | ({WEIGHT_GRADIENT: (columns, inner, rows)} if trained else {})).items():
                self.product(each, phase, *size, batch=batch, kind=kind, linear=narrow)
        if lora is not None and linear and lora.base != "16-bit":
            self.both(f"{name}_dequantize", (2.0 + lora.base_bytes,) * 2, np.multiply(n, k) * batch)
        if lora is not None and len(made) > 1:
            # around an adapter (NeMo, ParallelLinearAdapter): what enters is dropped out, what leaves is scaled and added to
            # the frozen product; backward the other way round
            leaving, entering, kernels = np.multiply(m, n), pairs * np.multiply(m, k), 2.0 * pairs
            self.memory(f"{name}_lora_add", FORWARD, (SCALE + RESIDUAL[0]) * leaving, kernels=kernels)
            self.memory(f"{name}_lora_add", INPUT_GRADIENT, SCALE * leaving + RESIDUAL[1] * entering, kernels=kernels)
            if lora.dropout > 0:
                self.both(f"{name}_lora_dropout", UNFUSED_DROPOUT, entering)

    def product(
        self,
        name: str,
        phase: int,
        m: Number,
        n: Number,
        k: Number,
        *,
        batch: Number = 1.0,
        kind: int = GEMM,
        core: bool = False,
        linear: bool = False,
    ) -> None:
        """One matrix product."""
        self._add(name, kind, phase, size=(m, n, k), batch=batch, flops=2.0 * m * n * k * batch, core=core, linear=linear)

    def casts(self, precision: Ints, ranks: Floats, *, fused: Sequence[tuple[str, int]] = ()) -> None:
        """Kernels that cast the inputs of linear layers, and the gradients of their outputs; `precision` in ON_DEVICES, [n].

        What is gathered over `ranks` with sequence parallelism is cast before, by each rank its part; a transposed copy of it
        is made after the gather of the backward (Transformer Engine, module/layernorm_linear.py and linear.py). `fused`:
        products, by name and phase, whose operand is cast by the kernel that writes it.
        """
        if not (precision >= WIDE).any():
            return
        cast, normed, transposed, apart = (
            np.array([getattr(one, name) for one in ON_DEVICES])[precision]
            for name in ("cast", "normed", "transposed", "apart")
        )
        local = np.where(apart == 0, transposed, 0.0)  # a second copy that is gathered like the first
        adapted: Words = ()
        if self._lora is not None:  # second copies are for gradients of weights; an adapter reads a norm in 16 bits
            transposed, apart, adapted = np.zeros_like(cast), np.zeros_like(cast), self._lora.targets
        moved = [np.zeros(self._keys), np.zeros(self._keys)]
        kernels = [0, 0]
        for name, (_, when, linear, _), (m, _, k, batch, *_) in zip(self._names, self._columns, self._numbers, strict=True):
            if not linear or when == WEIGHT_GRADIENT or (name, when) in fused:
                continue
            elements = np.asarray(m) * k * batch  # m, k of the forward are m, k of its input gradient's operand, too
            after_norm = name in NORMED and when == FORWARD
            first = normed if after_norm and name not in adapted else cast
            again = np.where(first < cast, apart, transposed) if after_norm else transposed
            gathered = (ranks > 1) & (name in (GATHERED_INPUTS if when == FORWARD else GATHERED_GRADIENTS))
            moved[when] += np.where(gathered, (first + local) / ranks, first + again) * elements
            moved[INPUT_GRADIENT] += np.where(gathered, apart, 0.0) * elements
            kernels[when] += 1
        for when in (FORWARD, INPUT_GRADIENT):
            self.memory("casts", when, moved[when], kernels=np.where(precision >= WIDE, float(kernels[when]), 0.0))

    def flash(self, shape: AttentionShape) -> None:
        """Core attention in one kernel, forward and backward.

        Forward: 2 products over the pairs of query and key that the mask leaves; backward: 5, because it computes the scores
        again (FlashAttention-2, arXiv 2307.08691, section 4.1).
        """
        self._attention = shape
        window = np.minimum(float(shape.window or np.inf), shape.keys)
        share = window * (1 - window / (2 * shape.keys)) / shape.keys  # of the square; 1/2 without a window
        pairs = shape.sequences * shape.heads * shape.queries * shape.keys * share
        d, v = shape.head_dim, shape.v_head_dim
        self._add("attention", ATTENTION, FORWARD, batch=1.0, flops=2.0 * pairs * (d + v), core=True)
        self._add("attention", ATTENTION, INPUT_GRADIENT, batch=1.0, flops=2.0 * pairs * (3 * d + 2 * v))

    def memory(
        self, name: str, phase: int, moved: Number, *, kernels: Number = 1.0, core: bool = False, trained: bool = False
    ) -> None:
        """A kernel that moves `moved` bytes. Gradients of weights only where they are `trained`, or nothing is frozen."""
        if phase == WEIGHT_GRADIENT and self._lora is not None and not trained:
            return
        self._add(name, MEMORY, phase, moved=moved, kernels=kernels, core=core)

    def both(
        self, name: str, per_element: tuple[float, float], elements: Number, *, kernels: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        """The same kernel forward and backward, with its bytes per element in each."""
        for phase, width, launches in zip((FORWARD, INPUT_GRADIENT), per_element, kernels, strict=True):
            self.memory(name, phase, width * elements, kernels=launches)

    def stacked(self) -> Operators:
        """The columns."""
        numbers = np.empty((7, self._keys, len(self._names)))
        for row, columns in enumerate(self._numbers):
            for column, value in enumerate(columns):
                numbers[column, :, row] = value
        kind, phase, linear, core = (np.array(column, int) for column in zip(*self._columns, strict=True))
        return Operators._make((tuple(self._names), kind, phase, linear == 1, core == 1, *numbers, self._attention))
