"""Nothing that changes cost is without a second opinion: a new axis, layer kind or optimizer fails here until it has one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from typing import get_args

import pytest

from sim_core import SCHEDULES, model_names, read_model
from sim_core.models import description
from sim_core.planning.fields import FIELDS
from tests.conftest import ROOT
from tests.oracle.cases import KNOWN_SCHEDULES, OTHERS
from tests.oracle.layer_messages import CHANNELS, MIXERS, NARROW, PARTS, SCANS
from tests.oracle.opinions import LAYERS, OF_FIELDS, OF_LAYERS, OF_SECTIONS, PLANS, UPDATES
from tests.oracle.test_layer_time import CONTEXT, DENSE, EXPERTS
from tests.oracle.test_updates import OTHERS as UPDATED

BY_TWINS = ("all_gpus", "layers", "virtual_layers")
"""Columns that `twins` in cases.py changes without a list of values."""


@cache
def functions_in(path: str) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def without_opinion(names: Iterable[str], opinions: Mapping[str, str | dict[str, str]]) -> list[str]:
    """Names that the oracle's list does not have, or of which the test does not exist."""
    missing = []
    for name in names:
        told = opinions.get(name, "")
        for test in told.values() if isinstance(told, dict) else [told]:
            path, _, function = test.partition("::")
            if not path or not (ROOT / path).is_file() or function not in functions_in(path):
                missing.append(name)
    return missing


def test_every_field_of_a_plan_has_a_second_opinion() -> None:
    """All with a column of their own: what else follows from these."""
    columns = [name for name, field in FIELDS.items() if not field.stands_for]
    assert without_opinion(columns, OF_FIELDS) == [], "fields without a second opinion: tests/oracle/opinions.py"
    assert [name for name in OF_FIELDS if name not in columns] == [], "opinions on fields that are gone"


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.words and name != "schedule"])
def test_every_word_of_a_field_has_a_second_opinion(name: str) -> None:
    """A precision, an optimizer, a dispatcher, a sharding."""
    told = OF_FIELDS[name]
    known = told if isinstance(told, dict) else [FIELDS[name].words[code] for code in OTHERS[name]]
    assert [word for word in FIELDS[name].words if word not in known] == []
    assert [word for word in known if word not in FIELDS[name].words] == []


def test_what_random_plans_are_said_to_exercise_they_do() -> None:
    fields = {name for name, told in OF_FIELDS.items() if told == PLANS}
    assert {name for name in fields if len(OTHERS.get(name, ())) < 2} == set(BY_TWINS)
    assert len(SCHEDULES) == KNOWN_SCHEDULES


def test_what_layers_and_updates_are_said_to_exercise_they_do() -> None:
    cases = [*DENSE, *CONTEXT, *EXPERTS]
    seen = {name: {getattr(case[1], name) for case in cases} for name in ("cp", "a2a", "gathers", "ep", "tp")}
    seen |= {"overlap_shared_experts": {case[3].overlap_shared_experts for case in cases}}
    assert {name for name, values in seen.items() if len(values) < 2} == set()
    told = OF_FIELDS["optimizer"]
    assert isinstance(told, dict)
    assert {name for name, test in told.items() if test == UPDATES} == {"adamw", *UPDATED}
    assert set(NARROW) == set(FIELDS["precision"].words)
    assert LAYERS in (OF_FIELDS["cp"], OF_FIELDS["overlap_shared_experts"])


def test_every_kind_of_layer_has_a_second_opinion() -> None:
    """The words of the description by which layers differ, and the kinds of scans; each in some model that ships."""
    words = {name: value for name, value in vars(description).items() if name.isupper() and isinstance(value, str)}
    scans = get_args(description.Recurrent.model_fields["kind"].annotation)
    assert without_opinion([*words.values(), *scans], OF_LAYERS) == []
    assert set(OF_LAYERS) == {*PARTS, *MIXERS, *CHANNELS, *SCANS}
    models = [read_model(name) for name in model_names()]
    units = [unit for model in models for unit in model.units]
    found = {word for unit in units for word in (unit.kind, unit.mixer, unit.channel)}
    found |= {model.recurrent.kind for model in models if model.recurrent}
    assert found == set(OF_LAYERS)


def test_every_section_of_a_model_has_a_second_opinion() -> None:
    assert without_opinion(description.SECTIONS, OF_SECTIONS) == []
    assert set(OF_SECTIONS) == set(description.SECTIONS)
