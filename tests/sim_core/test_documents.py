"""One reader for YAML and JSON: no key twice, the line of every key; and messages of one line, whatever the names are."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from sim_core import (
    Facts,
    FormatError,
    SimError,
    SpecError,
    documents,
    hardware_yaml,
    model_yaml,
    named,
    one_line,
    parse_hardware,
    parse_model,
    read_hardware,
    read_model,
    read_workload,
)
from sim_core.documents import key_path, parse_json, parse_yaml
from tests.conftest import GPT7B, ROOT

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128,
    "vocab_size": 100, "num_key_value_heads": 4, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
ODD = ("\n", "a\nb", "\x1b[31m", "a\u2028b", "\x85", "\x00", "tab\there", "\u202e", "\r")
"""Names that would break a line, or change what a terminal shows."""


def test_a_key_given_twice_in_a_hardware_file_is_refused_with_its_line(tmp_path: Path) -> None:
    text = hardware_yaml(read_hardware("H100-SXM"))
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("  nic_bandwidth:"))
    (tmp_path / "h.yaml").write_text("\n".join([*lines[: at + 3], "  nic_bandwidth: 1 GB/s", *lines[at + 3 :]]) + "\n")
    with pytest.raises(SpecError) as caught:
        read_hardware("h.yaml", tmp_path)
    assert str(caught.value) == f"{tmp_path / 'h.yaml'}:{at + 4}: not valid YAML: key 'nic_bandwidth' is given twice"


@pytest.mark.parametrize("of", ["description", "arguments"])
def test_a_key_given_twice_in_a_model_in_yaml_is_refused_with_its_line(of: str, tmp_path: Path) -> None:
    arguments = "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n"
    text = model_yaml(read_model("llama3-8b")) if of == "description" else arguments
    line = text.splitlines()[1]
    (tmp_path / "m.yaml").write_text(f"{text}{line}\n")
    with pytest.raises(SpecError, match=rf"m\.yaml:{len(text.splitlines()) + 1}: not valid YAML: key .* is given twice"):
        read_model("m.yaml", base=tmp_path)


def test_an_argument_under_two_spellings_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("MODEL_ARGS:\n  --num-layers: 2\n  num_layers: 4\n  hidden_size: 64\n")
    with pytest.raises(FormatError, match=r"m\.yaml:3: --num-layers: given with different values: '2', '4'"):
        read_model("m.yaml", base=tmp_path)


def test_a_key_given_twice_in_a_config_is_refused_with_its_line(tmp_path: Path) -> None:
    text = json.dumps(LLAMA, indent=1)[:-2] + ',\n "num_hidden_layers": 80\n}\n'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError) as caught:
        read_model("config.json", base=tmp_path)
    assert str(caught.value) == f"{tmp_path / 'config.json'}:{len(LLAMA) + 2}: key 'num_hidden_layers' is given twice"


def test_a_wrong_value_is_named_with_its_line(tmp_path: Path) -> None:
    """In a section, by a short name, and in the fields of a config."""
    text = hardware_yaml(read_hardware("H100-SXM")).splitlines()
    at = next(k for k, line in enumerate(text) if line.startswith("  nic_efficiency:"))
    for value, told in (("400", "nic_efficiency: found 400, expected at most 1"), ("x", "fabric.nic_efficiency: found 'x'")):
        (tmp_path / "h.yaml").write_text("\n".join([*text[: at + 1], f"    value: {value}", *text[at + 2 :]]))
        with pytest.raises(SpecError, match=rf"h\.yaml:{at + 1}: {told}"):
            read_hardware("h.yaml", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": "4k"}, indent=1))
    with pytest.raises(SpecError, match=r"config\.json:3: hidden_size: found '4k'"):
        read_model("config.json", base=tmp_path)
    (tmp_path / "m.yaml").write_text(model_yaml(read_model("mixtral-8x7b")).replace("topk: 2", "topk: two"))
    with pytest.raises(SpecError, match=r"m\.yaml:\d+: experts\.topk: found 'two'"):
        read_model("m.yaml", base=tmp_path)
    with pytest.raises(SpecError, match=r"m\.yaml: experts\.topk: found 'three'"):
        read_model("m.yaml", {"experts.topk": "three"}, tmp_path)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def paths_of(tree: Any, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The keys of a document, by those that lead to them."""
    if isinstance(tree, dict):
        inner = [paths_of(value, (*at, key)) for key, value in tree.items()]
        return {(*at, key) for key in tree}.union(*inner)
    return (
        set[tuple[str, ...]]().union(*(paths_of(each, (*at, str(k))) for k, each in enumerate(tree)))
        if isinstance(tree, list)
        else set()
    )


@settings(max_examples=100, deadline=None)
@given(tree=TREES, indent=st.sampled_from([None, 1]))
def test_json_is_what_json_says_and_every_key_has_its_line(tree: Any, indent: int | None) -> None:
    text = json.dumps(tree, indent=indent)
    document, lines = parse_json(text, "x.json")
    assert document == tree
    assert set(lines) == paths_of(tree)
    for at, line in lines.items():
        assert json.dumps(at[-1]) in text.splitlines()[line - 1]


@settings(max_examples=100, deadline=None)
@given(key=st.text(min_size=1, max_size=5), before=st.integers(0, 3), deep=st.integers(0, 3))
def test_a_key_given_twice_in_json_is_found_wherever_it_stands(key: str, before: int, deep: int) -> None:
    name = json.dumps(key)
    inner = (
        "{"
        + "".join(f"{json.dumps('filler' + str(k))}: [{{{name}: 1}}],\n" for k in range(before))
        + f"{name}: 1,\n{name}: 2}}"
    )
    text = "[" * deep + inner + "]" * deep
    with pytest.raises(SpecError, match=rf"^x\.json:{before + 2}: key .* is given twice$"):
        parse_json(text, "x.json")


def test_no_other_module_reads_yaml() -> None:
    """Data of ours apart, which no user writes."""
    own = {"sim_core/documents.py", "sim_core/simai/model.py", "sim_core/costing/one_collective.py"}
    found = set()
    for path in (*(ROOT / "sim_core").rglob("*.py"), *(ROOT / "sweep").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "yaml"
                and ("load" in node.attr or node.attr in ("scan", "compose"))
            ):
                found.add(str(path.relative_to(ROOT)))
    assert found <= own


@pytest.mark.parametrize("name", ODD)
def test_a_name_that_breaks_a_line_is_quoted_in_every_message(name: str, tmp_path: Path) -> None:
    quoted = ascii(name)
    facts = Facts(micro_batch=1, records={name: 0})
    document = yaml.safe_load(hardware_yaml(read_hardware("H100-SXM")))
    model = {"layers": 1, "hidden": 8, "heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {name: 3}))
    for call in (
        lambda: read_workload(str(GPT7B), facts),
        lambda: read_workload(str(GPT7B), Facts(micro_batch=1, records={"attention_layer": {name: 0}})),
        lambda: parse_hardware(document | {name: 1}, "h"),
        lambda: parse_hardware(document | {"node": document["node"] | {name: 1}}, "h"),
        lambda: parse_hardware(document | {"node": document["node"] | {"nvlink_bandwidth": {name: 1}}}, "h"),
        lambda: parse_model(model | {name: 1}, "m"),
        lambda: parse_model(model | {"experts": {name: 1}}, "m"),
        lambda: read_hardware("H100-SXM").with_values({name: 1}),
        lambda: read_model("llama3-8b", {name: 1}),
        lambda: read_model("config.json", base=tmp_path),
        lambda: read_model(name),
        lambda: read_hardware(name),
    ):
        with pytest.raises(SimError) as caught:
            call()
        told = str(caught.value)
        assert told.isprintable(), told
        assert quoted in told, told


@given(text=st.text())
def test_a_message_is_one_line_and_stays_what_it_is(text: str) -> None:
    error = SimError(text)
    assert str(error).isprintable()
    assert str(SimError(str(error))) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if text.isprintable():
        assert str(error) == one_line(text) == text


def test_names_that_print_as_they_are_stay_without_quotes() -> None:
    assert key_path(("axes", "tp")) == "axes.tp"
    assert key_path(("axes", "t\np")) == "axes.'t\\np'"
    assert (named("tp"), named(""), named(5), named("é")) == ("tp", "''", "5", "'\\xe9'")
    assert parse_yaml("a:\n  - b: 1\n", "x")[1] == {("a",): 1, ("a", "0"): 2, ("a", "0", "b"): 2}


@pytest.mark.parametrize(
    "end", ["", "b: [1\n", "a: 3\n", "b: *x\n", "b: 010\nc: 1e9\nd: 2020-01-01\n", "b: tp * pp\n", "b: !!python/none x\n"]
)
def test_a_long_text_is_read_as_a_short_one_is(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones are read in C first, 65,000 values in a third of the time; with an end, shorter ones count as long."""
    if end:
        monkeypatch.setattr(documents, "_LONG", 100)
    told: list[object] = []
    for count in (3, 100 if end else 40_000):
        try:
            document, lines = parse_yaml(f"a: [{', '.join(['7'] * count)}]\n{end}", "f")
            told.append(({key: value for key, value in document.items() if key != "a"}, lines.get(("b",)), set(document["a"])))
        except SpecError as error:
            told.append(str(error))
    assert told[0] == told[1]
