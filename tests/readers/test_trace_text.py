"""The rank trace: the example files by their known sums, any order of keys, free text, and what is kept of odd lines."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_core import FormatError
from sim_core.workloads.readers.trace_line import KEYS, NEWER_KEYS, PART_KEYS, TraceLine, any_line, any_parts, fast_line
from sim_core.workloads.readers.trace_text import DTYPE_BYTES, OPERATIONS, STATES, TraceText, looks_like_trace, read_trace_text
from tests.conftest import EXAMPLES

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SMALL = EXAMPLES / "workloads" / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt"
PATH = "trace.txt"


def read(*lines: str) -> TraceText:
    return read_trace_text(PATH, "\n".join(lines).encode())


def row(rest: str = "", name: str = "forward_step") -> str:
    return f"rank:0:{name}(duration=1{rest})"


def values(trace: TraceText, but: tuple[str, ...] = ()) -> list[object]:
    """All columns, comparable (NaN as None)."""
    columns = {field.name: getattr(trace, field.name) for field in fields(trace) if field.name not in but}
    plain = [c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()]
    return [[None if v != v else v for v in c] if isinstance(c, list) else c for c in plain]


def test_example_of_experts_has_its_known_sums() -> None:
    trace = read_trace_text(str(MOE))
    assert (trace.rank, trace.stage, trace.truncated, trace.warnings) == (0, 0, False, ())
    assert len(trace.name) == 83
    start_s = trace.end_s - trace.duration_s
    assert trace.end_s[-1] - start_s[0] == pytest.approx(0.71891, abs=1e-6)
    spans = set(zip(trace.end_s.tolist(), trace.duration_s.tolist(), strict=True))  # a fused pair is two rows, one exchange
    assert sum(duration_s for _, duration_s in spans) == pytest.approx(0.71038, abs=1e-6)
    names = np.array(trace.name)
    means = {name: trace.duration_s[names == name].mean() for name in set(trace.name)}
    assert means["forward_step"] == pytest.approx(12.10e-3, abs=5e-6)
    assert means["backward_step"] == pytest.approx(18.82e-3, abs=5e-6)
    assert means["optimizer_step"] == pytest.approx(31.79e-3)
    assert trace.micro_batch[names == "backward_step"].tolist() == list(range(16))
    finalize = trace.name.index("dp_allreduce")
    assert trace.description[finalize] == "Regular DP gradient synchronization (non-expert parameters)"
    assert (trace.group[finalize], trace.shape[finalize], trace.dtype[finalize]) == ("dp", (290013184,), "float32")
    forward = np.flatnonzero(names == "forward_step")[0]
    calls = np.flatnonzero(trace.sub_row == forward)
    assert [trace.sub_name[k] for k in calls] == 2 * ["allgather", "all_to_all", "all_to_all"]
    assert {trace.sub_group[k] for k in calls} == {"exp"}
    assert trace.sub_shape[calls[1]] == (2048, 4096)
    assert trace.sub_function[calls[0]] == "gather_along_first_dim_expert_parallel"
    assert trace.sub_function[calls[1]] == "_profiled_all_to_all_single"
    assert trace.sub_end_s[calls[0]] == 3371168.15098
    assert len(trace.sub_name) == 160


def test_example_of_the_last_stage_has_its_known_sums() -> None:
    trace = read_trace_text(str(SMALL))
    assert (trace.rank, trace.stage, trace.truncated, trace.warnings) == (2, 1, False, ())
    assert trace.end_s[-1] - (trace.end_s - trace.duration_s)[0] == pytest.approx(0.16587, abs=1e-6)
    assert trace.state[0] == "help"
    assert trace.description[3] == "loss_func, calculate and DP allreduce for the last stage"
    assert trace.sub_dtype[:3] == ("int64", "float32", "bool")
    assert trace.shape[0] == (4096, 1, 128)


def slow_line(text: str) -> TraceLine:
    """A line by the way of any order, its sub-operations too, which must be its last field."""
    line = any_line(PATH, 1, text, unended=True)
    return line._replace(parts=any_parts(PATH, 1, text[text.index("sub_operations=") + 15 : -1]))


def test_usual_lines_take_the_fast_way_and_the_slow_way_finds_the_same() -> None:
    for number, text in enumerate([*MOE.read_text().splitlines(), *SMALL.read_text().splitlines()], 1):
        spaced = text.replace("description=", "description=  x ")
        assert fast_line(text) == slow_line(text), number
        assert fast_line(spaced) == slow_line(spaced) is not None, number


WORDS = st.text("abcxyz_019.-", min_size=1, max_size=8).filter(lambda word: word != "None")
TIMES = st.decimals(0, 10**12, places=2).map(str)
SHAPES = st.just("None") | st.lists(st.integers(0, 5000), max_size=4).map(str)
DTYPES = st.just("None") | st.sampled_from(["torch." + name for name in DTYPE_BYTES])
GROUPS = st.sampled_from(["None", "pp", "dp", "ep", "ep_dp", "tp", "exp"])
# all keys are in each line of the property, so that a key in this text always stands again, where it means something
FREE = st.lists(
    st.sampled_from([*"abc ,()='\"[]{}:", ", a=b", ", duration=5 ms", ",timestamp=", "group_kind", ", group_kind=dp", "a=b"]),
    max_size=12,
).map(lambda pieces: " ".join("".join(pieces).split()))


@st.composite
def operations(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Fields of a line, in the usual order, and those of its sub-operations."""
    number = st.integers(0, 2**63 - 1).map(str)
    fields = {
        "stage_id": "1",
        "batch_id": draw(number | st.just("None")),
        "mg_state": draw(st.sampled_from(["None", *STATES])),
        "duration": draw(TIMES),
        "description": draw(st.just("None") | FREE),
        "group_kind": draw(GROUPS),
        **({key: draw(WORDS) for key in NEWER_KEYS} if draw(st.booleans()) else {}),
        "input__shape": draw(SHAPES),
        "input__dtype": draw(DTYPES),
        "timestamp": draw(TIMES),
    }
    part = st.fixed_dictionaries(
        {
            **{"trace_src_func": WORDS, "duration": TIMES, "timestamp": TIMES, "input__shape": SHAPES, "input__dtype": DTYPES},
            **{"func_name": WORDS, "group": GROUPS, "comm_func": st.sampled_from(["allreduce", "all_to_all"])},
        }
    )
    return fields, draw(st.lists(part, max_size=3))


def joined(fields: dict[str, str], parts: list[dict[str, str]], order: list[str], comma: str) -> str:
    strings = [comma.join(f"{key}={value}" for key, value in part.items()) for part in parts]
    texts = {**fields, "sub_operations": str(strings)}
    return "rank:7:forward_step(" + comma.join(f"{key}={texts[key]}" for key in order) + ")"


@settings(max_examples=250, derandomize=True, database=None, deadline=None)
@given(operation=operations(), comma=st.sampled_from([",", ", "]), data=st.data())
def test_any_order_of_keys_gives_the_fields_that_were_written(
    operation: tuple[dict[str, str], list[dict[str, str]]], comma: str, data: st.DataObject
) -> None:
    fields, parts = operation
    usual = [*fields, "sub_operations"]
    order = data.draw(st.permutations(usual))
    extra = {key: fields[key] for key in fields if key in NEWER_KEYS} or None
    expected = TraceLine(
        *("rank", 7, "forward_step", tuple(fields[key] for key in KEYS), extra),
        [(tuple(part[key] for key in PART_KEYS), None) for part in parts],
    )
    usual_text = joined(fields, parts, usual, comma)
    assert any_line(PATH, 1, usual_text, unended=True) == expected
    assert slow_line(usual_text) == expected
    assert fast_line(usual_text) in (expected, None)
    shuffled = any_line(PATH, 1, joined(fields, parts, order, comma), unended=False)
    assert shuffled.values == expected.values
    assert shuffled.parts == expected.parts
    assert dict(shuffled.extra or {}) == dict(extra or {})


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    line=st.sampled_from(MOE.read_text().splitlines()[:3] + SMALL.read_text().splitlines()[1:4]),
    edits=st.lists(
        st.tuples(st.integers(0, 2000), st.integers(0, 12), st.sampled_from(["", *"(),='\"[] \\0a.", "None", ",a=b"])),
        min_size=1,
        max_size=3,
    ),
)
def test_the_fast_way_never_differs_from_the_slow_way(line: str, edits: list[tuple[int, int, str]]) -> None:
    for place, taken, put in edits:
        at = place % (len(line) + 1)
        line = line[:at] + put + line[at + taken :]
    fast = fast_line(line)
    if fast is not None:
        assert fast == slow_line(line)


def test_oddities_of_a_file_change_nothing() -> None:
    plain = SMALL.read_text()
    expected = values(read_trace_text(PATH, plain.encode()))
    for odd in (plain.replace("\n", "\r\n"), "\ufeff" + plain, plain.rstrip("\n"), plain.replace("\n", " \t\n")):
        assert values(read_trace_text(PATH, odd.encode())) == expected
    blank = read_trace_text(PATH, plain.replace("\n", "\n\n").encode())
    assert values(blank, but=("line",)) == values(read_trace_text(PATH, plain.encode()), but=("line",))
    assert blank.line.tolist() == list(range(1, 18, 2))


@pytest.mark.parametrize("cut", range(1, 190, 7))
def test_cut_last_line_is_left_out_and_the_rest_kept(cut: int) -> None:
    lines = SMALL.read_text().splitlines()
    trace = read(*lines[:-1], lines[-1][:cut])
    whole = read(*lines[:-1])
    assert trace.truncated
    assert trace.warnings == (f"{PATH}:9: the last line is truncated: its operation is skipped",)
    assert values(trace, but=("truncated", "warnings")) == values(whole, but=("truncated", "warnings"))


def test_every_cut_of_a_file_keeps_the_whole_lines() -> None:
    data = SMALL.read_bytes()
    starts = [0, *(k + 1 for k, byte in enumerate(data) if byte == ord("\n"))]
    for end in range(len(data) // 2, len(data)):
        trace = read_trace_text(PATH, data[:end])
        whole = sum(start <= end for start in starts[1:])
        complete = data[end : end + 1] in (b"\n", b"")
        assert len(trace.name) == whole + complete - (1 if complete and data[end - 1 : end] == b"\n" else 0), end
        assert trace.truncated == (not complete and data[end - 1 : end] != b"\n"), end


def test_cut_inside_a_character_is_a_cut_line() -> None:
    trace = read_trace_text(PATH, (row() + "\n" + row(",description=\u00e9")).encode()[:-2])
    assert trace.truncated
    assert len(trace.name) == 1


def test_cut_after_a_parenthesis_of_the_description_is_seen() -> None:
    trace = read(row(), "rank:0:dp_allreduce(duration=11.88,description=gradients (non-expert parameters)")
    assert trace.truncated
    assert trace.name == ("forward_step",)


def test_absent_values() -> None:
    trace = read("rank:0:forward_step(duration=1)", "rank:0:loss_func(duration=0,timestamp=0)")
    assert trace.stage is None
    assert trace.micro_batch.tolist() == [-1, -1]
    assert math.isnan(trace.end_s[0])
    assert trace.end_s[1] == 0
    assert trace.duration_s.tolist() == [0.001, 0]
    assert (trace.state, trace.group, trace.shape, trace.dtype) == (("", ""), ("", ""), ((), ()), ("", ""))
    assert len(trace.sub_row) == len(trace.sub_name) == 0


def test_lines_of_a_stage_have_no_rank() -> None:
    trace = read("stage:3:forward_step(batch_id=0, mg_state=None, duration=2.5, description=None, stage_id=3)")
    assert (trace.rank, trace.stage, trace.micro_batch.tolist(), trace.duration_s.tolist()) == (None, 3, [0], [0.0025])


def test_newer_lines_keep_their_keys_as_texts() -> None:
    trace = read(
        "rank:0:ddp_grad_comm(comm_uid=c-1,iter=2,stage_id=0,mg_state=cooldown,group_kind=dp,bucket_numel=4,"
        "trigger_cmd_uid=cmd-1,launch_timestamp_ms=40.0,wait_end_timestamp_ms=None,duration=0.0,timestamp=40.0,sub_operations=[])",
        "rank:0:dp_allreduce(stage_id=0,batch_id=0,mg_state=finalize,duration=1,description=a, b,group_kind=dp,"
        "cmd_uid=cmd-2,op_semantics=None,finalize_base_duration_ms=None,input__shape=[4],input__dtype=torch.float32,"
        "timestamp=42.0,sub_operations=[])",
    )
    assert trace.warnings == ()
    assert trace.extra[0] is not None
    assert trace.extra[0]["trigger_cmd_uid"] == "cmd-1"
    own = {"comm_uid", "iter", "bucket_numel", "trigger_cmd_uid", "launch_timestamp_ms", "wait_end_timestamp_ms"}
    assert set(trace.extra[0]) == own
    assert trace.extra[1] == {"cmd_uid": "cmd-2", "op_semantics": "None", "finalize_base_duration_ms": "None"}
    assert trace.description[1] == "a, b"


@pytest.mark.parametrize(
    "text",
    [
        "f(x, y)",
        "(",
        ")",
        "a=b",
        "x, a=b",
        "it's",
        '"',
        "[",
        "]",
        "a) b",
        ", ,",
        "rank:0:x(y)",
        "a, duration=7",
        "[1, 2",
    ],
)
def test_description_may_hold_anything(text: str) -> None:
    parts = "sub_operations=['group=tp,duration=7,comm_func=reduce']"
    for line in (
        row(f",description={text},group_kind=dp,{parts}"),
        f"rank:0:forward_step(description={text},group_kind=dp,duration=1,{parts})",
        f"rank:0:forward_step(description={text},duration=1,group_kind=dp,{parts})",
    ):
        trace = read(line, row())
        assert (trace.description[0], trace.group[0], trace.duration_s[0]) == (text, "dp", 0.001)


def test_quotes_and_brackets_inside_sub_operations() -> None:
    strings = ['duration=1,comm_func=allreduce,note=it\'s [1, 2], "x"', 'comm_func=allgather,duration=2,note="a,b=c"']
    trace = read(row(f",sub_operations={strings}"), row(",sub_operations=None"))
    assert trace.sub_name == ("allreduce", "allgather")
    assert trace.sub_row.tolist() == [0, 0]
    assert trace.sub_extra == ({"note": 'it\'s [1, 2], "x"'}, {"note": '"a,b=c"'})
    assert read(row(",note=(don't, a=b),more='c, d=e'")).extra == ({"note": "(don't, a=b)", "more": "'c, d=e'"},)


def test_shape_that_is_the_one_element_of_a_list() -> None:
    assert read(row(",input__shape=[[4, 5]]"), row(",input__shape=[]")).shape == ((4, 5), ())


def test_unknown_words_are_kept_with_one_warning_each() -> None:
    trace = read(row(name="forward_stp"), row(",group_kind=dpp"), row(name="forward_stp"), row(",mg_sate=steady"))
    assert trace.name == ("forward_stp", "forward_step", "forward_stp", "forward_step")
    first = "unknown operation 'forward_stp' is kept as it is (nearest valid: forward_step, "
    assert trace.warnings[0].startswith(f"{PATH}:1: {first}")
    assert trace.warnings[0].endswith(" (and on 1 more line)")
    assert trace.warnings[1].startswith(f"{PATH}:2: unknown group 'dpp' is kept as it is (nearest valid: pp, dp, ")
    assert trace.warnings[2] == f"{PATH}:4: unknown key 'mg_sate' is kept as it is (nearest valid: mg_state)"
    assert trace.extra[3] == {"mg_sate": "steady"}


def test_a_thousand_unknown_words_are_a_page_of_warnings() -> None:
    trace = read(*(row(name=f"op_{k}") for k in range(1000)))
    assert len(trace.warnings) == 21
    assert trace.warnings[-1] == f"{PATH}:21: further unknown operations are kept as they are (and on 979 more lines)"


def test_known_operations_and_types_are_those_of_the_format() -> None:
    assert {"get_batch", "ddp_grad_comm", "exp_dp_allreduce", "optimizer_step"} <= set(OPERATIONS)
    assert DTYPE_BYTES["bfloat16"] == 2
    assert len(DTYPE_BYTES) == 12


def test_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text(row())
    assert read_trace_text(str(path)).path == str(path)
    with pytest.raises(OSError, match="nowhere"):
        read_trace_text(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([row(), "rank:1:loss_func(duration=1)"], "2: rank: found 1, expected 0 as on line 1 (one file per rank)"),
        ([row(",stage_id=1"), row(",stage_id=2")], "2: stage_id: found 2, expected 1 as on line 1 (one file per rank)"),
        (
            [row(), "rank:0:loss_func(duration=-1)", row()],
            "2: duration of loss_func: found '-1', expected milliseconds, 0 to 2^53",
        ),
        ([row(",duration=2"), row()], "1: key `duration` is repeated"),
    ],
)
def test_messages(lines: list[str], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(*lines)
    assert str(caught.value) == f"{PATH}:{message}"


def test_trace_is_told_from_other_files() -> None:
    assert looks_like_trace("\ufeff\r\n\n" + MOE.read_text()[:2000])
    assert looks_like_trace("stage:0:forward_step(")
    others = [*(EXAMPLES.glob("*.yaml")), *(EXAMPLES / "workloads").glob("*simai*"), *(EXAMPLES / "workloads").glob("*.tsv")]
    others += Path(__file__).parent.parent.glob("hostile/simai/*")
    assert len(others) > 200
    for other in others:
        assert not looks_like_trace(other.read_bytes()[:4096].decode("utf-8", "replace")), other
