"""Specs: what is accepted, and that every fault is one line with file, line, key, value and the nearest valid name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import SpecError, hardware_yaml, read_hardware
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from tests.sweep.conftest import SMALL, SpecWriter


def test_aliases_of_the_simai_header_and_short_forms(write_spec: SpecWriter) -> None:
    spec = load_spec(write_spec(axes={"model_parallel_NPU_group": [1, 2], "mbs": [1]}, fixed={"pp": 2, "gbs": 64}))
    assert spec.axes == {"tp": [1, 2], "micro_batch": [1]}
    assert spec.fixed == {"pp": 2, "global_batch": 64}


def test_ladders(write_spec: SpecWriter) -> None:
    axes = {"tp": {"powers_of_two": [2, 16]}, "pp": {"range": [1, 4]}, "ga": {"range": [4, 20, 8]}, "vpp, ep": [[1, 1], [2, 1]]}
    assert load_spec(write_spec(axes=axes)).axes == {
        "tp": [2, 4, 8, 16], "pp": [1, 2, 3, 4], "ga": [4, 12, 20], "vpp,ep": [[1, 1], [2, 1]],
    }  # fmt: skip


def test_set_overrides_any_key(write_spec: SpecWriter) -> None:
    sets = ["axes.tp=[4]", "fixed.micro_batch=2", "axes.hardware.nic_bandwidth=[1 GB/s]", "hardware.preset=H20-SXM",
            "hardware.nvlink_latency=1 us", "workload.micro_batch=4", "sample.n=7"]  # fmt: skip
    spec = load_spec(write_spec(), sets)
    assert spec.axes["tp"] == [4]
    assert spec.axes["hardware.nic_bandwidth"] == ["1 GB/s"]
    assert spec.fixed["micro_batch"] == 2
    assert spec.hardware == {"preset": "H20-SXM", "nvlink_latency": "1 us"}
    assert spec.workload.micro_batch == 4
    assert spec.sample
    assert (spec.sample.n, spec.sample.seed) == (7, 0)


def axes(**changes: Any) -> dict[str, Any]:
    return {"axes": {**SMALL["axes"], **changes}}


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"axess": {}}, ":43: axess: unknown key, nearest valid: axes"),
    ({"workload": {"path": "w.txt", "micro_bach": 1}}, ":4: workload.micro_bach: unknown key, nearest valid: micro_batch"),
    ({"workload": {"micro_batch": 1}}, ":2: workload: path or model: missing"),
    (
        {"workload": {"path": "w.txt", "micro_batch": 0}},
        ":4: workload.micro_batch: found '0', expected a whole number from 1 to 1,048,576",
    ),
    ({"workload": "nowhere.txt"}, "workload.path: No such file or directory: "),
    (axes(tpp=[1]), ": axes.tpp: unknown name, nearest valid: tp, pp"),
    (axes(tp=[]), ": axes.tp: an empty list, expected at least one value"),
    (axes(tp=[0]), ": axes.tp: found '0', expected a whole number from 1 to 65,536"),
    (axes(tp=[1.5]), ": axes.tp: found '1.5', expected a whole number"),
    (axes(tp=["many"]), ": axes.tp: found 'many', expected a whole number"),
    (axes(tp=[True]), ": axes.tp: found 'True', expected a whole number"),
    (axes(tp=[2, 2]), ": axes.tp: a value is given twice in '[2, 2]'"),
    (axes(tp={"powers": [1, 2]}), ": axes.tp: unknown ladder, nearest valid: powers_of_two"),
    (axes(tp={"range": [4, 1]}), ": axes.tp: range [4, 1]: expected first <= last, step >= 1"),
    (axes(tp={"range": [1]}), ": axes.tp: found '[1]', expected {range: [first, last, step]}"),
    (axes(tp={"powers_of_two": [5, 7]}), ": axes.tp: no power of two is within [5, 7]"),
    (axes(schedule=["1F1B"]), ": axes.schedule: found '1F1B', nearest valid: 1f1b"),
    (axes(checkpointing=["every"]), ": axes.checkpointing: found 'every', nearest valid: every:K"),
    (axes(checkpointing=["every:two"]), ": axes.checkpointing: found 'every:two', nearest valid: every:K"),
    (axes(checkpointing=["every:0"]), ": axes.checkpointing: found 'every:0', nearest valid: every:K"),
    (axes(checkpointing=["none:3"]), ": axes.checkpointing: found 'none:3', expected 'none', without a number"),
    (
        axes(layer_split=[18, 18]),
        ": axes.layer_split: found '[18, 18]', expected a list of splits; for one list of layers per virtual stage: [[18, 18]]",
    ),
    (axes(overlap_tp=["yes please"]), ": axes.overlap_tp: found 'yes please', expected true or false"),
    ({"axes": {"tp,pp": [[1]]}}, ": axes.tp,pp: found '[1]', expected 2 values per row"),
    (axes(global_batch=[8]), ": ga and global_batch are both given"),
    ({"fixed": {"tp": 1}}, ": fixed.tp: is also an axis; remove one"),
    (
        {"stragglers": {"slow_share": 0.01, "slowness": 1.2}},
        ": stragglers: is no section any more, expected the axes straggler_factor and straggler_stage",
    ),
    ({"fixed": {"hardware": "H20-SXM"}}, ": fixed.hardware: fixed hardware belongs under `hardware:`"),
    (axes(hardware=["H20-SXM"]), "hardware: is both an axis and given; remove one"),
    ({"hardware": "H100"}, "unknown hardware preset 'H100', nearest valid: H100-SXM, H100-96G-500W"),
    (
        {"hardware": {"preset": "H100-SXM", "nic_bandwith": 1}},
        "hardware.nic_bandwith: unknown number, nearest valid: nic_bandwidth",
    ),
    (
        {"hardware": {"preset": "H100-SXM", "nvlink_bandwidth": "fast"}},
        "nvlink_bandwidth: found 'fast', expected a number and a unit of B/s",
    ),
    ({"hardware": {"preset": "H100-SXM", "nvlink_bandwidth": "0 B/s"}}, "nvlink_bandwidth: found 0, expected a number above 0"),
    (
        {"hardware": {"preset": "H100-SXM", "nic_bandwidth": "1 GB/s"}},
        "hardware.nic_bandwidth: is both an axis and given; remove one",
    ),
    (axes(**{"hardware.nvls": [1]}), "found '1', expected true or false"),
    (axes(**{"hardware.nic_latency": [True]}), "found 'True', expected a name or a number"),
    ({"hardware": {"preset": "H100-SXM", "pat": "on"}}, "pat: found 'on', expected true or false"),
    ({"hardware": None}, ": hardware: missing"),
    ({"where": ["tpp > 1"]}, "where: 'tpp > 1': unknown column 'tpp', nearest valid: tp"),
    ({"where": ["tp +"]}, "where: 'tp +': cannot be read"),
    ({"where": ["tp + 1"]}, "where: 'tp + 1': found a value of type int64, expected true or false"),
    (
        {"where": ["max(tp) > 1"]},
        "where: 'max(tp) > 1': found the function 'max', expected a condition on the columns of one plan",
    ),
    ({"objectives": [{"minimize": "foo"}]}, "objectives: unknown column 'foo', nearest valid: "),
    ({"where": ["tp <= (SELECT avg(tp) FROM plans)"]}, "found 'SELECT', expected a condition on the columns of one plan"),
    ({"where": ["get_current_timestamp() > '2020-01-01'"]}, "found the function 'get_current_timestamp', expected a condition"),
    ({"where": ["localtimestamp is not null"]}, "where: 'localtimestamp is not null': unknown column 'localtimestamp'"),
    ({"where": ["random() < 0.5"]}, "found the function 'random', expected a condition on the columns of one plan"),
    ({"where": ["tp > 1) OR (pp > 1"]}, "where: 'tp > 1) OR (pp > 1': cannot be read"),
    ({"where": ["tp > 1, pp > 1"]}, "where: 'tp > 1, pp > 1': "),
    ({"workload": {"path": "w.txt", "micro_batch": 10**20}}, ":4: workload.micro_batch: found '100000000000000000000'"),
    ({"workload": "a\0b"}, "workload.path: embedded null byte"),
    ({"fixed": {"mbs": 1, "micro_batch": 2}}, ": fixed.micro_batch: micro_batch is given twice"),
    ({"fidelity": "simai", "fixed": {"fidelity": "event"}}, "fidelity: is given at the top level and under fixed; remove one"),
    (
        {"hardware": {"preset": "H100-SXM", "gpus_per_node": 10**9}},
        "gpus_per_node: found 1e+09, expected a whole number up to 65536",
    ),
    ({"objectives": []}, ": objectives: found '[]'"),
    ({"per": "tpp"}, "per: unknown column 'tpp', nearest valid: tp"),
    ({"workload": "w.txt", "objectives": [{"maximize": "tokens_per_s"}]}, "objectives: tokens_per_s needs workload.sequence"),
    ({"where": ["step_time_s < 3"]}, "unknown column 'step_time_s' (it is only known after the run: use sweep rank --where)"),
    (
        {"hardware": {"preset": "H100-SXM", "nvlink_bandwidth": 400}},
        "found '400', expected a number with its unit, such as '400 Gb/s'",
    ),
    (
        {"hardware": {"preset": "H100-SXM", "nvlink_bandwidth": "-400 Gb/s"}},
        "found '-400 Gb/s', expected a number of at least 0",
    ),
    (axes(**{"hardware.nic_bandwidth": ["400"]}), "found '400', expected a number with its unit, such as '400 Gb/s'"),
    (axes(model_parallel_NPU_group=[2]), ": axes.model_parallel_NPU_group: tp is given in two axes"),
    (axes(bucket_bytes=["100 Mb/s"]), ": axes.bucket_bytes: unknown unit 'Mb/s' in '100 Mb/s', valid: B, GB"),
    ({"name": "a/b"}, ":1: name: found 'a/b'"),
    ({"objectives": [{"least": "tp"}]}, ": objectives.0"),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS)
def test_a_fault_is_one_line_that_says_where_and_what(write_spec: SpecWriter, changes: dict[str, Any], message: str) -> None:
    path = write_spec(**changes)
    with pytest.raises(SpecError) as caught:
        prepare(load_spec(path), path.parent)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the file is empty, expected keys such as workload"),
        ("- a", "expected keys such as workload"),
        ("a: [", ":1: not valid YAML"),
        ("a: 1\na: 2\n", ":2: not valid YAML: key 'a' is given twice"),
        ("\x00", "not UTF-8 text"),
        ("a: &x [*x]", ":1: aliases (*x) are not supported"),
        ("a: &a [x,x]\nb: &b [*a,*a]\n", ":2: aliases (*a) are not supported"),
        ("a: !!timestamp abc", "not valid YAML"),
        ("a: !!int abc", "not valid YAML"),
        ("a: !!python/object:os.system x", "not valid YAML"),
    ],
)
def test_a_document_that_is_no_spec(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("assignment", ["axes.tp", "=1", "axes.tp=[1", ""])
def test_a_set_that_is_no_assignment(write_spec: SpecWriter, assignment: str) -> None:
    with pytest.raises(SpecError, match="--set"):
        load_spec(write_spec(), [assignment])


def test_a_fault_of_a_set_is_told_of_the_set(write_spec: SpecWriter) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write_spec(), ["axes.ga=[0]"])
    assert str(caught.value).startswith("--set axes.ga=[0]: axes.ga: found '0'")


def test_a_fault_of_the_file_is_not_told_of_a_set_with_a_similar_key(write_spec: SpecWriter) -> None:
    path = write_spec(axes={"tp": [1], "tpp": [1]})
    with pytest.raises(SpecError) as caught:
        load_spec(path, ["axes.tp=[2]"])
    assert str(caught.value).startswith(f"{path}:")
    with pytest.raises(SpecError, match=r"^--set axes\.ga=\[0\]: axes\.ga: found '0'"):
        load_spec(write_spec(), ["axes.ga=[1]", "axes.ga=[0]"])  # the last one counts
    with pytest.raises(SpecError, match=r"^--set axes=\{ga: \[0\]\}: axes\.ga: found '0'"):
        load_spec(write_spec(), ["axes={ga: [0]}"])


def test_a_sample_larger_than_the_space_is_all_of_it_and_said(write_spec: SpecWriter) -> None:
    path = write_spec(sample={"n": 10**9})
    prepared = prepare(load_spec(path), path.parent)
    assert prepared.sweep.space.count == 11_520
    assert any("all 11520 plans are taken" in note for note in prepared.notes)


def test_switches_of_nccl_are_axes_and_overrides(write_spec: SpecWriter) -> None:
    path = write_spec(
        hardware={"preset": "H100-SXM", "pat": False}, axes={"hardware.nvls": [True, False], "tp": [4]}, where=None
    )
    job = prepare(load_spec(path), path.parent).sweep
    assert job.hardware.columns.nvls.tolist() == [True, False]
    assert not job.hardware.columns.pat.any()
    assert job.hardware.columns.ll128.all()


def test_a_hardware_file_of_version_0_1_says_what_it_does_not_give(write_spec: SpecWriter, tmp_path: Path) -> None:
    document = yaml.safe_load(hardware_yaml(read_hardware("H100-SXM")))
    del document["nccl"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document | {"name": "mine"}))
    path = write_spec(hardware="mine.yaml", where=None)
    (note,) = (note for note in prepare(load_spec(path), path.parent).notes if "not given, taken as" in note)
    assert note.startswith("hardware mine: not given, taken as ll128 yes, pxn yes, pat yes, nvls no, nvls_tree no, ")
    whole = write_spec(hardware=document, where=None)  # and in the spec itself
    assert (
        prepare(load_spec(whole), whole.parent).sweep.hardware.columns.ll_bandwidth_one_node.tolist() == [87.7e9] * 2
    )  # an axis


def test_hardware_files_are_told_apart_by_their_names(write_spec: SpecWriter, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(hardware_yaml(read_hardware("H100-SXM")))
    assert read_hardware(str(mine)) == read_hardware("H100-SXM")
    axes = {"hardware": ["H100-SXM", "mine.yaml"], "tp": [4]}
    path = write_spec(hardware=None, axes=axes, where=None)
    with pytest.raises(SpecError, match="two entries are named 'H100-SXM'"):
        prepare(load_spec(path), path.parent)
    mine.write_text(mine.read_text().replace("name: H100-SXM", "name: mine"))
    assert prepare(load_spec(path), path.parent).sweep.space.hardware_names == ("H100-SXM", "mine")


def test_an_axis_over_presets_replaces_the_given_one(write_spec: SpecWriter) -> None:
    path = write_spec(where=None)
    sets = ["hardware=null", "axes.hardware=[H100-SXM, H20-SXM]"]
    assert prepare(load_spec(path, sets), path.parent).sweep.space.hardware_names == ("H100-SXM", "H20-SXM")


def test_bytes_with_a_unit(write_spec: SpecWriter) -> None:
    assert load_spec(write_spec(fixed={"bucket_bytes": "100 MB"})).fixed["bucket_bytes"] == 100_000_000


@pytest.mark.parametrize("text", ["010", "1:30", "0x10", "1_000", "2024-13-45", "off"])
def test_numbers_are_what_they_look_like(write_spec: SpecWriter, text: str) -> None:
    """YAML 1.1 would read 8, 90, 16, 1000, a date and false."""
    with pytest.raises(SpecError, match=r"axes\.tp: found"):
        load_spec(write_spec(), [f"axes.tp=[{text}]"])


def test_conditions_on_one_plan_may_say_what_sql_says(write_spec: SpecWriter) -> None:
    path = write_spec(where=["tp is distinct from pp", "checkpointing like 'block%' or ga in (1, 4)", "abs(tp - pp) < 8"])
    assert prepare(load_spec(path), path.parent).sweep.where


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (
            {"preset": "megatron-core", "host_forwrd": "1 ms"},
            "host_forwrd: unknown fact of a stack, nearest valid: host_forward",
        ),
        ({"preset": "megatron-core", "host_forward": "1"}, "host_forward: found '1', expected a number with its unit"),
        ({"attention_scale": {"H100": 1.5}}, "attention_scale: found device 'H100', nearest valid: H100-SXM"),
        ({"sums_in_8_bits": ["H200"]}, "sums_in_8_bits: found device 'H200', nearest valid: H200-SXM"),
        ({"preset": "nanotrn"}, "unknown stack 'nanotrn', nearest valid: nanotron"),
        ({"preset": 7}, "found '7', expected the name of a stack"),
        (7, "found '7', expected the name of a stack, or a preset and facts"),
    ],
)
def test_a_stack_that_cannot_be(write_spec: SpecWriter, stack: object, message: str) -> None:
    path = write_spec(workload={"model": "llama3-8b", "sequence": 4096, "stack": stack})
    with pytest.raises(SpecError) as error:
        load_spec(path)
    assert f"workload.stack: {message}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_stack_with_facts_of_ones_own_says_so(write_spec: SpecWriter) -> None:
    path = write_spec(workload={"model": "llama3-8b", "sequence": 4096, "stack": {"host_forward": "1.2 ms"}})
    prepared = prepare(load_spec(path), path.parent)
    assert any("stack megatron-core (host_forward 1.2 ms)" in note for note in prepared.sweep.workload.notes)
