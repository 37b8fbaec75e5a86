"""The ledger of pipeline schedules: one row each, from which names, placement, sends, legality and the docs follow.

To add a schedule: a row here, its order in `orders.py`, its second opinion in `tests/oracle/` (docs/recipes.md).
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import numpy as np

ALTERNATING, FORWARDS_FIRST, WEIGHTS_LATE, WEIGHTS_LATER, ZERO_BUBBLE_V, HALF_V, THIRD_V, HALFWAY = range(8)
"""Orders of blocks, which `orders.fill_order` writes."""
LOOP, V, BOTH_WAYS = 0, 1, 2
"""Where virtual stages lie: chunk after chunk down the stages; down and up again; the whole model down and again up."""
WHOLE_BACKWARDS, WEIGHTS_APART, IN_PAIRS = 0, 1, 2
"""Backwards: input and weight gradient in one block; in two; whole ones beside forwards of other micro-batches, some in two."""
BLOCKING, BACKGROUND = 0, 1
"""Sends: both stages stop for a message; it runs beside the blocks of both."""
ANY_VPP = 0
ANY_NUMBER, IN_GROUPS, IN_ROUNDS, TWICE_PP = range(4)
"""Micro-batches: any number; in groups, where vpp is above 1; in equal rounds of about pp; at least 2 pp."""
MORE = 3
"""Any vpp above 2."""


@dataclass(frozen=True)
class Schedule:
    """A schedule. Nothing that changes a step has a default: a row that does not say how it sends is an error.

    `bubble` and `holds_if` are functions of p stages, m micro-batches, v virtual stages a stage, and F, I, W, the seconds of
    forward, input gradient and weight gradient of a micro-batch on one stage; T is their sum. The docs print what they return.
    """

    name: str
    order: int
    _: KW_ONLY
    placement: int
    backwards: int
    sends: int  # of vpp 1, where the plan does not say; interleaved chunks always send in the background
    sends_otherwise: bool  # whether a plan may ask for the other way
    vpp: int  # that it needs; ANY_VPP
    micro_batches: int
    bubble: Callable[..., float] | None  # of the makespan, where messages cost nothing, in seconds; None: no closed form
    holds_if: Callable[..., bool] | None = None  # always
    in_simai: bool = False  # whether fidelity simai has it
    tried_with_vpp: tuple[int, ...] = ()  # 1, 2, MORE: where `sweep explain` tries it instead of another
    what: str
    source: str

    def bubble_s(self, p: int, m: int, v: int, *, forward_s: float, input_s: float, weight_s: float) -> float | None:
        """The bubble of even stages in seconds, by the closed form; None where none holds."""
        names = {"F": forward_s, "I": input_s, "W": weight_s, "T": forward_s + input_s + weight_s, "p": p, "m": m, "v": v}
        if self.bubble is None or (self.holds_if is not None and not self.holds_if(**names)):
            return None
        return float(self.bubble(**names))


def _fill(p: int, v: int, T: float, **_: float) -> float:
    return (p - 1) * T / v


def _late(p: int, v: int, F: float, I: float, W: float, **_: float) -> float:  # noqa: E741 (the letter of the docs)
    return (p - 1) * max(F + I - W, I, F) / v


ROWS = (
    Schedule(
        "gpipe", FORWARDS_FIRST, placement=LOOP, backwards=WHOLE_BACKWARDS, sends=BLOCKING, sends_otherwise=True,
        vpp=1, micro_batches=ANY_NUMBER, bubble=_fill, in_simai=True,
        what="all forwards, then all backwards", source="Huang et al. 2019, figure 2",
    ),
    Schedule(
        "1f1b", ALTERNATING, placement=LOOP, backwards=WHOLE_BACKWARDS, sends=BLOCKING, sends_otherwise=True,
        vpp=ANY_VPP, micro_batches=IN_GROUPS, bubble=_fill, in_simai=True, tried_with_vpp=(1, 2, MORE),
        what="one forward, one backward; with vpp > 1 interleaved, micro-batches in groups of `microbatch_group_size` "
        "(Megatron's `--microbatch-group-size-per-virtual-pipeline-stage`; 0: pp)",
        source="arXiv 2104.04473, section 2.2; Megatron-Core",
    ),
    Schedule(
        "1f1b-deepspeed", ALTERNATING, placement=LOOP, backwards=WHOLE_BACKWARDS, sends=BLOCKING,
        sends_otherwise=False, vpp=1, micro_batches=ANY_NUMBER, bubble=_fill,
        what="the order of 1f1b; neighbours meet before each block, gradients are reduced at the end",
        source="DeepSpeed, `TrainSchedule`",
    ),
    Schedule(
        "looped-bfs", FORWARDS_FIRST, placement=LOOP, backwards=WHOLE_BACKWARDS, sends=BLOCKING,
        sends_otherwise=True, vpp=ANY_VPP, micro_batches=ANY_NUMBER,
        bubble=lambda p, m, v, T, **_: (p - 1 + (v - 1) * max(p - m, 0)) * T / v, tried_with_vpp=(MORE,),
        what="each run of layers takes all micro-batches in turn", source="arXiv 2211.05953",
    ),
    Schedule(
        "zb-h1", WEIGHTS_LATE, placement=LOOP, backwards=WEIGHTS_APART, sends=BACKGROUND, sends_otherwise=False,
        vpp=1, micro_batches=ANY_NUMBER, bubble=_late, holds_if=lambda m, p, **_: m >= p, tried_with_vpp=(1,),
        what="weight gradients apart and late", source="arXiv 2401.10241, section 2.1",
    ),
    Schedule(
        "zb-h2", WEIGHTS_LATER, placement=LOOP, backwards=WEIGHTS_APART, sends=BACKGROUND, sends_otherwise=False,
        vpp=1, micro_batches=ANY_NUMBER,
        bubble=lambda p, F, I, W, **_: (p - 1) * max(F + I - 2 * W, I - F, F),  # noqa: E741
        holds_if=lambda m, p, **_: m >= 2 * p - 1,
        tried_with_vpp=(1,),
        what="zb-h1 with twice as many micro-batches kept", source="arXiv 2401.10241, section 2.2",
    ),
    Schedule(
        "interleaved-zb", WEIGHTS_LATE, placement=LOOP, backwards=WEIGHTS_APART, sends=BACKGROUND,
        sends_otherwise=False, vpp=ANY_VPP, micro_batches=IN_ROUNDS, bubble=_late, holds_if=lambda m, p, **_: m % p == 0,
        tried_with_vpp=(2, MORE),
        what="interleaved, weight gradients apart", source="PyTorch, `ScheduleInterleavedZeroBubble`",
    ),
    Schedule(
        "zb-v", ZERO_BUBBLE_V, placement=V, backwards=WEIGHTS_APART, sends=BACKGROUND, sends_otherwise=False,
        vpp=2, micro_batches=ANY_NUMBER,
        bubble=lambda p, F, **_: (p - 1) / 2 * F,
        holds_if=lambda m, p, F, I, W, **_: F == I == W and m >= 2 * p - 1,  # noqa: E741
        tried_with_vpp=(2,),
        what="layers in a V: down the stages and up again; weight gradients apart",
        source="arXiv 2401.10241, section 6; PyTorch, `ScheduleZBVZeroBubble`",
    ),
    Schedule(
        "v-half", HALF_V, placement=V, backwards=WEIGHTS_APART, sends=BACKGROUND, sends_otherwise=False,
        vpp=2, micro_batches=ANY_NUMBER, bubble=None, tried_with_vpp=(2,),
        what="a V with about half of the activations of 1f1b", source="arXiv 2405.15362",
    ),
    Schedule(
        "v-min", THIRD_V, placement=V, backwards=WEIGHTS_APART, sends=BACKGROUND, sends_otherwise=False,
        vpp=2, micro_batches=ANY_NUMBER, bubble=None,
        what="a V with about a third of the activations of 1f1b", source="arXiv 2405.15362",
    ),
    Schedule(
        "dualpipe", HALFWAY, placement=BOTH_WAYS, backwards=IN_PAIRS, sends=BACKGROUND, sends_otherwise=False,
        vpp=1, micro_batches=TWICE_PP, bubble=None,
        what="micro-batches from both ends; each stage holds two runs of layers, the job two copies of the model",
        source="arXiv 2412.19437, section 3.2.1",
    ),
    Schedule(
        "dualpipev", HALFWAY, placement=V, backwards=IN_PAIRS, sends=BACKGROUND, sends_otherwise=False,
        vpp=2, micro_batches=TWICE_PP, bubble=None, tried_with_vpp=(2,),
        what="dualpipe folded into a V, with one copy of the model", source="DeepSeek's DualPipe repository",
    ),
)  # fmt: skip
"""All schedules; a plan names one by its position."""

SCHEDULES = tuple(row.name for row in ROWS)
GPIPE, ONE_F_ONE_B, DEEPSPEED, LOOPED_BFS, ZB_H1, INTERLEAVED_ZB, DUALPIPE, DUALPIPEV = map(
    SCHEDULES.index, ("gpipe", "1f1b", "1f1b-deepspeed", "looped-bfs", "zb-h1", "interleaved-zb", "dualpipe", "dualpipev")
)

# Columns of the ledger, by the position of a schedule
_COLUMNS = ("order", "placement", "backwards", "sends", "sends_otherwise", "vpp", "micro_batches")
ORDER, PLACEMENT, _BACKWARDS, SENDS, SENDS_OTHERWISE, VPP, MICRO_BATCHES = (
    np.array([getattr(row, name) for row in ROWS]) for name in _COLUMNS
)
SPLITS = _BACKWARDS != WHOLE_BACKWARDS
"""Whether a schedule runs weight gradients apart, at least some."""
PAIRS = _BACKWARDS == IN_PAIRS
"""Whether it runs a forward and a backward of different micro-batches at the same time."""
APART = SPLITS & ~PAIRS
"""Whether it runs all of them apart: then no message hides behind the weight gradient of its own piece."""
IN_SIMAI = tuple(row.name for row in ROWS if row.in_simai)


def schedules_to_try(vpp: int) -> tuple[str, ...]:
    """Schedules that may suit a plan with this vpp better than its own."""
    return tuple(row.name for row in ROWS if min(vpp, MORE) in row.tried_with_vpp)
