"""Broken model files of every kind: a model, or an error in one line; nothing else, and never a hang."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from sim_core import SimError, model_document, parameters, parse_model, read_model
from tests.sim_core.test_model_readers import BLOOM_ARGUMENTS, CONFIGS, DEEPSEEK_YAML, GPT3_ARGUMENTS, MIXTRAL_ARGUMENTS

PRESETS = ("gpt2", "deepseek-v3", "gpt-oss-20b", "gemma2-27b", "glm-4.5-air")
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([10**30, 2**31, 1.5, -0.0, float("nan"), "", "silu", "64", "\x00", [], [1], [[]], {}, {"a": 1}]),
)
FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def one_line(read: Any) -> None:
    """A model that counts and is written, or one line."""
    try:
        model = read()
    except SimError as error:
        assert "\n" not in str(error)
        return
    assert parameters(model).total > 0
    assert parse_model(model_document(model), "again") == model


@FAST
@given(data=st.data())
def test_any_description(data: st.DataObject) -> None:
    document = model_document(read_model(data.draw(st.sampled_from(PRESETS))))
    for _ in range(data.draw(st.integers(1, 3))):
        inner = document
        key = data.draw(st.sampled_from(sorted(inner)))
        if isinstance(inner[key], dict) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
            key = data.draw(st.sampled_from(sorted(inner)))
        if data.draw(st.booleans()):
            inner[key] = deepcopy(data.draw(ODD))
        else:
            del inner[key]
        if not document:
            break
    one_line(lambda: parse_model(document, "here"))


@FAST
@given(data=st.data())
def test_any_config(data: st.DataObject, tmp_path: Path) -> None:
    fields = dict(data.draw(st.sampled_from([fields for fields, _, _ in CONFIGS])))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted([*fields, "layer_types", "sliding_window", "num_key_value_heads", "head_dim"])))
        if data.draw(st.booleans()):
            fields[key] = deepcopy(data.draw(ODD))
        else:
            fields.pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    one_line(lambda: read_model("config.json", base=tmp_path))


@FAST
@given(data=st.data())
def test_any_arguments(data: st.DataObject, tmp_path: Path) -> None:
    text = data.draw(st.sampled_from([MIXTRAL_ARGUMENTS, GPT3_ARGUMENTS, BLOOM_ARGUMENTS, DEEPSEEK_YAML]))
    name = "args.yaml" if text == DEEPSEEK_YAML else "args.sh"
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", " ", "\n", "-", "--", "'", '"', "$", "9", "*", "[", "\\", "#", "=", "\t:"]))
            + text[at + cut :]
        )
    (tmp_path / name).write_text(text, encoding="utf-8")
    values: dict[str, object] = {"vocabulary": 1000} if data.draw(st.booleans()) else {}
    one_line(lambda: read_model(name, values, tmp_path))
