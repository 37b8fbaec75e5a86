"""Every broken SimAI text of tests/hostile/simai gives its one exact message; harmless oddities change no result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sim_core import FormatError, read_workload

CORPUS = Path(__file__).parent.parent / "hostile" / "simai"
EXPECTED: dict[str, str] = yaml.safe_load((CORPUS / "expected.yaml").read_text(encoding="utf-8"))

HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 pp: 2 vpp: 1 ga: 2 all_gpus: 64 "
    "checkpoints: 2 2 4 checkpoint_initiates: 2 3 5 pp_comm: 16777216"
)
LAYERS = (
    "grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t1048576\t100",
    "moe_grad_norm1\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER_DP_EP\t524288\t100",
    "embedding_layer\t-1\t9000\tALLREDUCE\t65536\t1\tNONE\t0\t1000\tNONE\t0\t100",
    "moe_layer\t-1\t5000\tALLTOALL_EP\t65536\t6000\tALLTOALL_EP\t65536\t7000\tNONE\t0\t100",
    "embedding_layer\t-1\t9100\tALLREDUCE\t65536\t1\tNONE\t0\t1000\tNONE\t0\t100",
    "moe_layer\t-1\t5100\tALLTOALL_EP\t65536\t6000\tALLTOALL_EP\t65536\t7000\tNONE\t0\t100",
    "optimizer1\t-1\t1\tNONE\t0\t777\tNONE\t0\t1\tNONE\t0\t100",
)
PLAIN = "\n".join([HEADER, str(len(LAYERS)), *LAYERS]) + "\n"


def content_and_warnings(folder: Path, data: bytes) -> tuple[str, tuple[str, ...]]:
    path = folder / "odd.txt"
    path.write_bytes(data)
    workload, warnings = read_workload(str(path))
    return workload.content, warnings


def test_corpus_and_expectations_name_the_same_files() -> None:
    files = {path.name for path in CORPUS.iterdir() if not path.name.startswith("_")} - {"expected.yaml"}
    assert files == set(EXPECTED)
    assert len(files) >= 70


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_broken_file_gives_its_one_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CORPUS)  # so that the length of a message does not depend on where the project lies
    with pytest.raises(FormatError) as caught:
        read_workload(name)
    text = str(caught.value)
    assert text == f"{name}:{EXPECTED[name]}"
    assert text.splitlines() == [text]
    assert text.isprintable()  # a file must not be able to send escape sequences to a terminal
    assert len(text) < 400


ODDITIES: dict[str, Callable[[str], str]] = {
    "CRLF": lambda plain: plain.replace("\n", "\r\n"),
    "CRLF on some lines": lambda plain: plain.replace("\nmoe_layer", "\r\nmoe_layer"),
    "blank lines before the header": lambda plain: "\n\n" + plain,
    "blank lines anywhere": lambda plain: plain.replace("\n", "\n\n \t\n"),
    "blank lines of CRLF": lambda plain: plain.replace("\n", "\r\n\r\n"),
    "blank lines at the end": lambda plain: plain + "\n \n\t\n",
    "byte-order mark": lambda plain: "\ufeff" + plain,
    "byte-order mark, CRLF, no final newline": lambda plain: "\ufeff" + plain.replace("\n", "\r\n").rstrip(),
    "no final newline": lambda plain: plain.rstrip("\n"),
    "pp_comm without colon": lambda plain: plain.replace("pp_comm:", "pp_comm"),
    "pp_comm as a float": lambda plain: plain.replace("16777216", "16777216.0"),
    "pp_comm without colon as a float": lambda plain: plain.replace("pp_comm: 16777216", "pp_comm 16777216.0"),
    "blanks as separators": lambda plain: plain.replace("\t", " "),
    "many blanks and tabs as separators": lambda plain: plain.replace("\t", " \t  ").replace(" ", "   "),
    "tabs in the header": lambda plain: plain.replace(" ", "\t"),
    "blanks around lines": lambda plain: plain.replace("\n", " \t\n  "),
}


@pytest.mark.parametrize("oddity", sorted(ODDITIES))
def test_oddity_changes_nothing_and_says_nothing(oddity: str, tmp_path: Path) -> None:
    odd = ODDITIES[oddity](PLAIN)
    assert odd != PLAIN
    assert content_and_warnings(tmp_path, odd.encode()) == content_and_warnings(tmp_path, PLAIN.encode())


def test_plain_file_has_no_warning(tmp_path: Path) -> None:
    """Otherwise the warnings counted below would not be those of the oddity."""
    assert content_and_warnings(tmp_path, PLAIN.encode())[1] == ()


@pytest.mark.parametrize("place", ["ga:", "pp_comm:"])
def test_unknown_key_is_ignored_with_a_warning_that_names_the_nearest(place: str, tmp_path: Path) -> None:
    plain, _ = content_and_warnings(tmp_path, PLAIN.encode())
    odd, warnings = content_and_warnings(tmp_path, PLAIN.replace(place, f"all_gpu: 3 {place}").encode())
    assert odd == plain
    assert warnings == (f"{tmp_path / 'odd.txt'}:1: unknown key `all_gpu` is ignored (nearest valid: all_gpus)",)


def test_unknown_key_near_to_none_is_ignored_with_a_warning(tmp_path: Path) -> None:
    plain, _ = content_and_warnings(tmp_path, PLAIN.encode())
    odd, warnings = content_and_warnings(tmp_path, PLAIN.replace("ga:", "zzzz: 3 ga:").encode())
    assert odd == plain
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{tmp_path / 'odd.txt'}:1: unknown key `zzzz` is ignored")
    assert "nearest" not in warnings[0]


def test_missing_vpp_is_1_with_a_warning(tmp_path: Path) -> None:
    plain, _ = content_and_warnings(tmp_path, PLAIN.encode())
    odd, warnings = content_and_warnings(tmp_path, PLAIN.replace("vpp: 1 ", "").encode())
    assert odd == plain
    assert warnings == (f"{tmp_path / 'odd.txt'}:1: the header has no `vpp:`, taken as 1",)


def test_missing_pp_comm_is_0(tmp_path: Path) -> None:
    stated, _ = content_and_warnings(tmp_path, PLAIN.replace("16777216", "0").encode())
    assert content_and_warnings(tmp_path, PLAIN.replace(" pp_comm: 16777216", "").encode())[0] == stated


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "blank.txt"
    path.write_text("\n\r\n" + PLAIN.replace("\n", "\n\n").replace("\t777\t", "\t-777\t"), encoding="utf-8", newline="")
    with pytest.raises(FormatError) as caught:
        read_workload(str(path))
    assert str(caught.value).startswith(f"{path}:19: column 6 (ig_ns): found '-777'")
