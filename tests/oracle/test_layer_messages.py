"""The collectives of every layer of every model against those listed by hand, on ranks of all kinds of parallelism."""

from __future__ import annotations

import pytest

from sim_core import Model, model_names, read_model
from sim_core.models.keys import make_keys, refusals
from sim_core.models.messages import messages
from sim_core.models.precision import PRECISION_NAMES
from tests.facts import stack_with
from tests.oracle.layer_messages import NARROW, Message, Rank, Region

RANKS = (
    Rank(),
    Rank(tp=2),
    Rank(tp=4, sequence_parallel=True, micro_batch=2),
    Rank(tp=2, sequence_parallel=True, ep=4, etp=2),
    Rank(ep=8, micro_batch=3),
    Rank(cp=2),
    Rank(cp=4, a2a=4),
    Rank(cp=8, a2a=2, tp=2, sequence_parallel=True),
    Rank(cp=4, gathers=True),
    *(Rank(tp=2, sequence_parallel=True, ep=2, precision=name) for name in NARROW),
)
ADAPTED: dict[str, object] = {"lora": {"rank": 16, "targets": ["qkv", "fc2"]}}
DROPPING: dict[str, object] = {"experts.capacity_factor": 1.25, "experts.imbalance": 1.5}
PADDING: dict[str, object] = {"experts.capacity_factor": 2.0, "experts.imbalance": 1.5, "experts.pad_to_capacity": True}
CHANGED: tuple[tuple[str, dict[str, object]], ...] = (
    ("llama3-8b", ADAPTED),
    ("mixtral-8x7b", DROPPING),
    ("mixtral-8x7b", PADDING),
    ("deepseek-v2", {"mla.q_rank": None}),
    ("nemotron3-nano-30b-a3b", {"mtp_layers": 1}),
)


def compared(model: Model, fused_loss: bool = True) -> None:
    """Assert that product and oracle list the same messages of each unit on each rank that the model can run with."""
    for rank in RANKS:
        numbers = rank._asdict() | {"precision": PRECISION_NAMES.index(rank.precision)}
        keys = make_keys(**{name: int(value) for name, value in numbers.items()})
        assert model.sequence
        if any(refused[0] for refused in refusals(model, keys, model.sequence).values()):
            continue
        for unit in model.units:
            found = messages(model, unit, keys, stack_with(fused_loss=fused_loss))
            columns = found.kind, found.group, found.phase, found.operators, found.bytes[0], found.beside
            listed = [Message(*row) for row in zip(*(list(column) for column in columns), strict=True) if row[4] > 0]
            expected = sorted(Region(model, unit, rank, fused_loss).messages())
            assert len(listed) == len(expected), (unit, rank, sorted(listed), expected)
            for mine, own in zip(sorted(listed), expected, strict=True):
                assert mine._replace(bytes=0) == own._replace(bytes=0), (unit, rank)
                assert mine.bytes == pytest.approx(own.bytes, rel=1e-12), (unit, rank, mine)


@pytest.mark.parametrize("name", model_names())
def test_every_layer_sends_what_its_papers_say(name: str) -> None:
    model = read_model(name)
    compared(read_model(name, {"sequence": model.positions or 8192}))


@pytest.mark.parametrize(("name", "values"), CHANGED)
def test_adapters_capacities_and_queries_change_what_is_sent(name: str, values: dict[str, object]) -> None:
    compared(read_model(name, {"sequence": 8192, **values}), fused_loss=False)
