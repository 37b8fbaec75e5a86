"""The rank trace: the example files by their known sums, any order of keys, free text, and what is kept of odd lines."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

from sim_core import FormatError
from sim_core.workloads.traces.line import (
    KEYS,
    NEWER_KEYS,
    PART_KEYS,
    TraceLine,
    any_line,
    any_parts,
    fast_line,
    looks_like_trace,
)
from sim_core.workloads.traces.text import DTYPE_BYTES, OPERATIONS, STATES, TraceText, read_trace_text
from tests.conftest import EXAMPLES

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SMALL = EXAMPLES / "workloads" / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt"
PATH = "trace.txt"


def read(*lines: str) -> TraceText:
    return read_trace_text(PATH, "\n".join(lines).encode())


def row(rest: str = "", name: str = "forward_step") -> str:
    return f"rank:0:{name}(duration=1{rest})"


def values(trace: TraceText, but: tuple[str, ...] = ()) -> list[object]:
    """All values, comparable (NaN as None)."""
    columns = [value for name, value in trace._asdict().items() if name not in (*but, "rows")]
    return [*columns, *([None if v != v else v for k, v in row._asdict().items() if k not in but] for row in trace.rows)]


def test_example_of_experts_has_its_known_sums() -> None:
    trace = read_trace_text(str(MOE))
    assert (trace.rank, trace.stage, trace.truncated, trace.warnings) == (0, 0, False, ())
    rows, names = trace.rows, trace.names
    assert len(rows) == 83
    assert rows[-1].end_s - (rows[0].end_s - rows[0].duration_s) == pytest.approx(0.71891, abs=1e-6)
    spans = {(row.end_s, row.duration_s) for row in rows}  # a fused pair is two rows, one exchange
    assert sum(duration_s for _, duration_s in spans) == pytest.approx(0.71038, abs=1e-6)
    means = {name: fmean(row.duration_s for row in rows if row.name == name) for name in names}
    assert means["forward_step"] == pytest.approx(12.10e-3, abs=5e-6)
    assert means["backward_step"] == pytest.approx(18.82e-3, abs=5e-6)
    assert means["optimizer_step"] == pytest.approx(31.79e-3)
    assert [row.micro_batch for row in rows if row.name == "backward_step"] == list(range(16))
    finalize = rows[names.index("dp_allreduce")]
    assert finalize.description == "Regular DP gradient synchronization (non-expert parameters)"
    assert (finalize.group, finalize.shape, finalize.dtype) == ("dp", (290013184,), "float32")
    calls = rows[names.index("forward_step")].calls
    assert [call.name for call in calls] == 2 * ["allgather", "all_to_all", "all_to_all"]
    assert {call.group for call in calls} == {"exp"}
    assert calls[1].shape == (2048, 4096)
    assert calls[0].end_s == 3371168.15098
    assert sum(len(row.calls) for row in rows) == 160


def test_example_of_the_last_stage_has_its_known_sums() -> None:
    trace = read_trace_text(str(SMALL))
    assert (trace.rank, trace.stage, trace.truncated, trace.warnings) == (2, 1, False, ())
    rows = trace.rows
    assert rows[-1].end_s - (rows[0].end_s - rows[0].duration_s) == pytest.approx(0.16587, abs=1e-6)
    assert rows[0].state == "help"
    assert rows[3].description == "loss_func, calculate and DP allreduce for the last stage"
    assert [call.dtype for row in rows for call in row.calls][:3] == ["int64", "float32", "bool"]
    assert rows[0].shape == (4096, 1, 128)


def slow_line(text: str) -> TraceLine:
    """A line by the way of any order, its sub-operations too, which must be its last field."""
    line = any_line((PATH, 1), text, unended=True)
    return line._replace(parts=any_parts((PATH, 1), text[text.index("sub_operations=") + 15 : -1]))


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
    assert any_line((PATH, 1), usual_text, unended=True) == expected
    assert slow_line(usual_text) == expected
    assert fast_line(usual_text) in (expected, None)
    shuffled = any_line((PATH, 1), joined(fields, parts, order, comma), unended=False)
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
    assert [row.line for row in blank.rows] == list(range(1, 18, 2))


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
        assert len(trace.rows) == whole + complete - (1 if complete and data[end - 1 : end] == b"\n" else 0), end
        assert trace.truncated == (not complete and data[end - 1 : end] != b"\n"), end


def test_cut_inside_a_character_is_a_cut_line() -> None:
    trace = read_trace_text(PATH, (row() + "\n" + row(",description=\u00e9")).encode()[:-2])
    assert trace.truncated
    assert len(trace.rows) == 1


def test_cut_after_a_parenthesis_of_the_description_is_seen() -> None:
    trace = read(row(), "rank:0:dp_allreduce(duration=11.88,description=gradients (non-expert parameters)")
    assert trace.truncated
    assert trace.names == ["forward_step"]


def test_absent_values() -> None:
    trace = read("rank:0:forward_step(duration=1)", "rank:0:loss_func(duration=0,timestamp=0)")
    assert trace.stage == -1
    first, second = trace.rows
    assert math.isnan(first.end_s)
    assert second.end_s == 0
    assert (first.duration_s, second.duration_s) == (0.001, 0)
    for row in trace.rows:
        assert (row.micro_batch, row.state, row.group, row.shape, row.dtype, row.calls) == (-1, "", "", (), "", ())


def test_lines_of_a_stage_have_no_rank() -> None:
    trace = read("stage:3:forward_step(batch_id=0, mg_state=None, duration=2.5, description=None, stage_id=3)")
    assert (trace.rank, trace.stage, trace.rows[0].micro_batch, trace.rows[0].duration_s) == (None, 3, 0, 0.0025)


def test_newer_lines_keep_their_keys_as_texts() -> None:
    trace = read(
        "rank:0:ddp_grad_comm(comm_uid=c-1,iter=2,stage_id=0,mg_state=cooldown,group_kind=dp,bucket_numel=4,"
        "trigger_cmd_uid=cmd-1,launch_timestamp_ms=40.0,wait_end_timestamp_ms=None,duration=0.0,timestamp=40.0,sub_operations=[])",
        "rank:0:dp_allreduce(stage_id=0,batch_id=0,mg_state=finalize,duration=1,description=a, b,group_kind=dp,"
        "cmd_uid=cmd-2,op_semantics=None,finalize_base_duration_ms=None,input__shape=[4],input__dtype=torch.float32,"
        "timestamp=42.0,sub_operations=[])",
    )
    assert trace.warnings == ()
    first, second = trace.rows
    assert first.extra is not None
    assert first.extra["trigger_cmd_uid"] == "cmd-1"
    own = {"comm_uid", "iter", "bucket_numel", "trigger_cmd_uid", "launch_timestamp_ms", "wait_end_timestamp_ms"}
    assert set(first.extra) == own
    assert second.extra == {"cmd_uid": "cmd-2", "op_semantics": "None", "finalize_base_duration_ms": "None"}
    assert second.description == "a, b"


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
        first = read(line, row()).rows[0]
        assert (first.description, first.group, first.duration_s) == (text, "dp", 0.001)


def test_quotes_and_brackets_inside_sub_operations() -> None:
    strings = ['duration=1,comm_func=allreduce,note=it\'s [1, 2], "x"', 'comm_func=allgather,duration=2,note="a,b=c"']
    trace = read(row(f",sub_operations={strings}"), row(",sub_operations=None"))
    first, second = trace.rows
    assert [call.name for call in first.calls] == ["allreduce", "allgather"]
    assert second.calls == ()
    assert [call.extra for call in first.calls] == [{"note": 'it\'s [1, 2], "x"'}, {"note": '"a,b=c"'}]
    assert read(row(",note=(don't, a=b),more='c, d=e'")).rows[0].extra == {"note": "(don't, a=b)", "more": "'c, d=e'"}


def test_shape_that_is_the_one_element_of_a_list() -> None:
    trace = read(row(",input__shape=[[4, 5]]"), row(",input__shape=[]"))
    assert [row.shape for row in trace.rows] == [(4, 5), ()]


def test_unknown_words_are_kept_with_one_warning_each() -> None:
    trace = read(row(name="forward_stp"), row(",group_kind=dpp"), row(name="forward_stp"), row(",mg_sate=steady"))
    assert trace.names == ["forward_stp", "forward_step", "forward_stp", "forward_step"]
    first = "unknown operation 'forward_stp' is kept as it is (nearest valid: forward_step, "
    assert trace.warnings[0].startswith(f"{PATH}:1: {first}")
    assert trace.warnings[0].endswith(" (and on 1 more line)")
    assert trace.warnings[1].startswith(f"{PATH}:2: unknown group 'dpp' is kept as it is (nearest valid: pp, dp, ")
    assert trace.warnings[2] == f"{PATH}:4: unknown key 'mg_sate' is kept as it is (nearest valid: mg_state)"
    assert trace.rows[3].extra == {"mg_sate": "steady"}


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
