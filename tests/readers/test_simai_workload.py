"""From lines to a workload: micro-batches and layers are stored once, means keep the total, oddities are said."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sim_core import Facts, Workload, read_workload
from sim_core.workloads.simai.text import read_simai_text
from tests.aicb import gpt_text, write
from tests.conftest import GPT7B, LLAMA405B


def test_gpt7b_is_36_layers_of_two_records_and_an_embedding(gpt7b: Workload) -> None:
    assert gpt7b.layers == 36
    assert gpt7b.names == ("attention_layer", "mlp_layer", "embedding_layer")
    assert gpt7b.arrays.unit_layers.shape == (2, 37)
    assert gpt7b.base == (4, 1, 1, 1, 512, 1, 1)


def test_llama_is_128_layers_over_16_stages_and_ends_with_a_last_layer(llama: Workload) -> None:
    assert llama.layers == 128
    assert llama.names[-2:] == ("embedding_layer", "final_column")
    assert (llama.arrays.first_unit, llama.arrays.last_unit) == (1, 2)


def test_micro_batches_with_other_times_are_averaged_so_that_the_total_is_kept(llama: Workload) -> None:
    """The first embedding's weight gradient takes 1,879,040 ns, the other 15 take 2,864,860 ns."""
    embedding = llama.arrays.pieces.compute_s[llama.names.index("embedding_layer")]
    assert 16 * embedding[2] * 1e9 == pytest.approx(1_879_040 + 15 * 2_864_860, abs=1e-6)


def test_a_file_of_20000_lines_is_stored_as_a_dozen_records(tmp_path: Path) -> None:
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, ga=160, layers=64))
    text = read_simai_text(path)
    assert len(text.records) > 20_000
    assert len({id(record) for record in text.records}) == 8
    workload, _ = read_workload(path, Facts(micro_batch=1))
    size = sum(sys.getsizeof(field) for field in (*workload.arrays.pieces, *workload.arrays.step))
    assert size < 10_000
    few, _ = read_workload(
        write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, ga=160, layers=64, repetitions=1)), Facts(micro_batch=1)
    )
    for one, all_of_them in zip(few.arrays.pieces, workload.arrays.pieces, strict=True):
        assert (one == all_of_them).all()  # one repetition says as much of a micro-batch as 160
    assert (few.arrays.micro_batches, workload.arrays.micro_batches) == (1, 160)


def test_layers_that_differ_in_records_are_units_of_their_own(tmp_path: Path) -> None:
    """A dense layer, then two with experts: `attention` begins each."""
    lines = gpt_text(tp=1, pp=1, all_gpus=8, layers=3, experts=2**20).splitlines()
    dense = next(k for k, line in enumerate(lines) if line.startswith("moe_layer"))
    del lines[dense]
    lines[1] = str(len(lines) - 2)
    workload, _ = read_workload(write(tmp_path, "\n".join(lines)))
    assert workload.layers == 3
    assert workload.arrays.unit_layers[:2, -1].tolist() == [1, 2]


def test_a_layer_is_the_shortest_period_of_the_names(tmp_path: Path) -> None:
    """Attention, attention, mlp: the first name stands twice in a layer, and begins it once."""
    lines = gpt_text(tp=1, pp=1, all_gpus=8, layers=4).splitlines()
    rows = [row for line in lines[2:] for row in ([line] * 2 if line.startswith("attention") else [line])]
    workload, _ = read_workload(write(tmp_path, "\n".join([lines[0], str(len(rows)), *rows])))
    assert workload.layers == 4
    assert workload.arrays.unit_layers[:, -1].tolist() == [4, 0]


def test_layers_timed_one_by_one_are_units_of_their_own(tmp_path: Path) -> None:
    lines = gpt_text(tp=1, pp=2, all_gpus=8, layers=8).splitlines()
    rows = [k for k, line in enumerate(lines) if line.startswith("mlp_row")]
    for k in rows:
        lines[k] = lines[k].replace("1920000", str(1_920_000 + k))
    workload, _ = read_workload(write(tmp_path, "\n".join(lines)))
    assert workload.arrays.unit_layers[:4, -1].tolist() == [2, 2, 2, 2]


def test_too_many_kinds_of_layers_are_averaged_and_said(tmp_path: Path) -> None:
    lines = gpt_text(tp=1, pp=1, all_gpus=8, layers=600).splitlines()
    rows = [k for k, line in enumerate(lines) if line.startswith("mlp_row")]
    for k in rows:
        lines[k] = lines[k].replace("1920000", str(1_920_000 + k))
    workload, warnings = read_workload(write(tmp_path, "\n".join(lines)))
    assert "those that differ only in times are averaged" in warnings[0]
    found = workload.arrays.pieces.compute_s[workload.names.index("mlp_row"), 0]
    assert found == pytest.approx(np.mean([1_920_000 + k for k in rows]) * 1e-9)


def test_recompute_ids_become_reruns(tmp_path: Path) -> None:
    """Checkpoint at the first record of each layer, initiate at its last: all records between run once more."""
    text = gpt_text(tp=1, pp=1, all_gpus=8, layers=4)
    lines = text.splitlines()
    first = [k - 2 for k, line in enumerate(lines) if line.startswith("attention_column")]
    last = [k - 2 for k, line in enumerate(lines) if line.startswith("mlp_row")]
    ids = f"checkpoints: 4 {' '.join(map(str, first))} checkpoint_initiates: 4 {' '.join(map(str, last))}"
    lines[0] = lines[0].replace("checkpoints: 0 checkpoint_initiates: 0", ids)
    workload, _ = read_workload(write(tmp_path, "\n".join(lines)))
    by_name = dict(zip(workload.names, workload.arrays.pieces.rerun.tolist(), strict=True))
    assert by_name == {"attention_column": 1.0, "mlp_row": 0.0, "embedding_layer": 0.0}
    plain, warnings = read_workload(write(tmp_path, "\n".join(lines).replace("_FWD_IN_BCKWD", "")))
    assert not plain.arrays.pieces.rerun.any()
    assert "the checkpoint ids have no effect" in warnings[0]


def test_p2p_bytes_are_the_activation_a_tp_message_carries(gpt7b: Workload, llama: Workload) -> None:
    """2 bytes x sequence x micro-batch x hidden; a rank sends 1/tp of it under sequence parallelism."""
    assert gpt7b.arrays.p2p_bytes == 2 * 2048 * 4096
    assert llama.arrays.p2p_bytes == 2 * 4096 * 16384 / 8


@pytest.mark.parametrize(
    ("edit", "warning"),
    [
        (("ga: 1 ", "ga: 1 extra: 5 "), ":1: unknown key `extra` is ignored"),
        (("embedding_layer\t", "first_layer\t"), ": no `embedding_layer`: all layer lines are taken as one micro-batch"),
        (("grad_gather\t", "norm_gather\t"), ":3: record norm_gather before the first layers: taken once per step"),
        (("NONE\t0\t100", "NONE\t7\t100"), "bytes with collective NONE are ignored"),
    ],
)
def test_oddities_are_said(tmp_path: Path, edit: tuple[str, str], warning: str) -> None:
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8).replace(*edit, 1))
    assert any(warning in told for told in read_workload(path)[1])


def test_content_is_the_numbers_not_the_name(tmp_path: Path) -> None:
    for source in (GPT7B, LLAMA405B):
        here, _ = read_workload(str(source))
        there, _ = read_workload(write(tmp_path, source.read_text(), "other.txt"))
        assert here.content == there.content
        changed, _ = read_workload(
            write(tmp_path, source.read_text().replace("100\n", "100\n").replace("\t1\tNONE", "\t2\tNONE", 1))
        )
        assert changed.content != here.content
