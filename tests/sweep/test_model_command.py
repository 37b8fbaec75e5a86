"""`sweep model`: the list, the numbers of one, files of other programs, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sweep.commands import sweep


def test_models_are_listed_with_their_parameters() -> None:
    done = sweep("model")
    assert done.returncode == 0
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()}
    assert rows["llama3.1-405b"][1:] == ["405.9", "B", "126", "16384", "128", "8", "53248", "128256", "8192"]
    assert rows["deepseek-v3"][1:5] == ["671.0", "B", "37.55", "B"]


def test_one_model_shows_units_parameters_flops_and_source() -> None:
    done = sweep("model", "deepseek-v3")
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    assert "moe_layer 58 11,507,286,016" in words
    assert "parameters 671,026,404,352, 37,552,282,624 active per token" in words
    assert "mtp parameters 11,610,067,968, not in the total" in words
    assert "source config.json of deepseek-ai/DeepSeek-V3" in words
    assert "FLOPs per token 291.8 GFLOP forward and backward, sequence 4096" in words


def test_json_states_what_follows_from_the_numbers() -> None:
    """Multi-token prediction apart; FLOPs forward and backward of a token."""
    found = json.loads(sweep("model", "deepseek-v3", "--json").stdout)
    assert found["hidden"] == 7168
    counts = found["parameters"]
    assert (counts["total"], counts["active"], counts["mtp"]) == (671_026_404_352, 37_552_282_624, 11_610_067_968)
    assert found["flops_per_token"] == pytest.approx(291.8e9, rel=1e-3)


def test_a_number_can_be_set_and_the_block_printed_is_read_back(tmp_path: Path) -> None:
    block = sweep("model", "mixtral-8x7b", "--set", "sequence=4096", "--set", "experts.topk=1", "--yaml").stdout
    assert block.startswith(
        "model:\n  name: mixtral-8x7b-changed\n  source: 'sequence=4096, experts.topk=1; all else: mixtral-8x7b, "
    )
    (tmp_path / "mine.yaml").write_text(block, encoding="utf-8")
    assert sweep("model", tmp_path / "mine.yaml", "--yaml").stdout == block
    assert "topk: 1" in block
    assert "  name: mixtral-8x7b\n" in sweep("model", "mixtral-8x7b", "--set", "sequence=4096", "--yaml").stdout
    assert "  name: mine\n" in sweep("model", "mixtral-8x7b", "--set", "layers=16", "--set", "name=mine", "--yaml").stdout


def test_a_config_has_no_sequence_until_it_is_given(tmp_path: Path) -> None:
    fields = '"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257'
    (tmp_path / "config.json").write_text("{" + fields + ', "activation_function": "gelu_new"}', encoding="utf-8")
    unknown = sweep("model", tmp_path).stdout
    assert "124,439,808" in unknown
    assert "unknown: the sequence is not stated (--set sequence=4096)" in unknown
    assert "sequence 512" in sweep("model", tmp_path / "config.json", "--set", "sequence=512").stdout


def test_all_that_a_model_lacks_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("layers: 76\nhidden: 8192\nheads: 64\nffn: 28672\nvocabulary: 128256\n")
    lacks = "gated, activation, norm, position, tied: missing (`sweep model llama3-70b --yaml` shows a whole model)"
    assert sweep("model", tmp_path / "mine.yaml").stderr == f"error: {tmp_path}/mine.yaml: {lacks}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lama3-8b",), "error: unknown model 'lama3-8b', nearest valid: llama3-8b"),
        (("nowhere.json",), "error: model 'nowhere.json': No such file or directory: nowhere.json"),
        (("gpt2", "--set", "layer=3"), "error: --set: gpt2: layer: unknown key, nearest valid: layers"),
        (("gpt2", "--set", "layers"), "error: --set: found layers, expected NAME=VALUE, such as sequence=8192"),
        (("gpt2", "--set", "layers=["), "error: --set: found layers=[, expected a value"),
        (("gpt2", "--set", "experts.count=2"), "error: --set: gpt2: experts.topk, experts.ffn: missing"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = sweep("model", *arguments)
    assert done.returncode == (2 if "--set" in arguments else 1)
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
