"""The documents agree with the code: reasons, presets, example specs."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import yaml

from docs.made import docs_tables, tables, validation_page
from sim_core import EXPLANATIONS, METRICS, REASONS, HardwareTable, Workload, model_names, preset_names, read_hardware, simulate
from sim_core.models.description import Experts, Mla, Model, Window
from sweep.columns import result_schema
from sweep.evaluation.preparation import prepare
from sweep.nightly.spec import Keep, NightlySpec, Notify, SweepEntry, Thresholds, load_nightly
from sweep.spec.spec import load_spec
from sweep.spec.stacks import framework_of
from tests.conftest import EXAMPLES, ROOT, make_plans
from tests.sweep.commands import sweep

NIGHTLY = EXAMPLES / "nightly.yaml"


def test_every_reason_has_an_explanation() -> None:
    assert set(EXPLANATIONS) == set(REASONS) - {""}


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_a_preset_has_its_source(name: str) -> None:
    hardware = read_hardware(name)
    for section in (hardware.device, hardware.node, hardware.fabric, hardware.nccl, hardware.kernels):
        for key, number in ((key, number) for key, number in section if not isinstance(number, str)):
            assert len(number.source) > 10, (name, key)
            assert number.source != "given in the spec"
            assert not number.source.startswith("default")
    assert not hardware.not_given()


def test_every_stack_of_the_pages_can_be_stated() -> None:
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for text in re.findall(r"stack: (\{(?:[^{}]|\{[^{}]*\})*\})", page.read_text(encoding="utf-8")):
            stated = yaml.safe_load(" ".join(text.split()))
            found.append(framework_of(stated if {"preset", "framework"} & set(stated) else {"preset": "nanotron", **stated}))
    assert len(found) >= 5


@pytest.mark.parametrize("example", ["gpt7b.yaml", "llama3_70b_h100.yaml"])
def test_the_first_run_page_shows_what_its_jobs_print(example: str, tmp_path: Path) -> None:
    """The real output but for times and paths, long lines broken; the README shows the answer of the first, as the page does of
    the second."""
    out = str(tmp_path / "out")
    printed = _printed("run", str(EXAMPLES / example), "--out", out)
    varying = ("Engine ready", "Compiling the engine", "Results:")
    told = [line.replace(out, "results/...") for line in printed if not line.startswith(varying) and "plans/s" not in line]
    begin = next(k for k, line in enumerate(told) if line.startswith(("Best if it fits: ", "Launch plan ")))
    if "llama3" in example:
        pages = {"docs/first_run.md": told, "README.md": told[begin : begin + 9]}
    else:
        pages = {"docs/first_run.md": told[begin : begin + 3]}
    for name, lines in pages.items():
        text = re.sub(r"results/[\w.-]+", "results/...", (ROOT / name).read_text(encoding="utf-8"))
        page = " ".join(text.split())
        assert [line for line in lines if " ".join(line.split()) not in page] == [], name


def _printed(*words: str) -> list[str]:
    done = sweep(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", sorted({*EXAMPLES.glob("*.yaml")} - {NIGHTLY}), ids=lambda path: path.name)
def test_every_example_prepares(path: Path) -> None:
    assert prepare(load_spec(path), path.parent).sweep.space.size >= 100


def test_the_example_of_a_nightly_file_prepares() -> None:
    for entry in load_nightly(NIGHTLY).sweeps:
        spec = NIGHTLY.parent / entry.spec
        assert prepare(load_spec(spec, entry.set), spec.parent).sweep.space.size >= 100


def test_every_key_of_a_nightly_file_is_documented() -> None:
    text = (ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")
    for model in (NightlySpec, SweepEntry, Keep, Thresholds, Notify):
        assert [name for name in model.model_fields if f"`{name}`" not in text] == [], model.__name__


def test_every_number_of_a_model_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for model in (Model, Experts, Mla, Window):
        assert [name for name in model.model_fields if f"`{name}`" not in text] == [], model.__name__


def test_every_kind_of_model_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "`sim_core/models/readers/families.yaml`" in text
    assert f"the {len(model_names())} that ship" in text


def test_the_example_of_operators_runs() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)  # raises if a name is wrong
    assert scope["found"]


def test_every_gap_of_a_file_is_documented() -> None:
    named = {row[0] for row in tables.read("gaps")}
    assert [reason for reason in REASONS if reason.endswith("_unknown") and reason not in named] == []
    assert named - {"reason"} <= set(REASONS)


def test_the_page_of_commands_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "made" / "commands_page.py"))["page"]()
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == made, "make reference"


def test_what_every_file_is_for_can_be_printed() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "made" / "rooms_page.py"))["page"]()
    lines = [line for line in made.splitlines() if line.startswith("| `")]
    assert len(lines) > 200
    assert [line for line in lines if not re.fullmatch(r"\| `[\w./]+` \| \S.* \|", line)] == []


@pytest.mark.parametrize("name", sorted({name for name, _ in docs_tables.TABLES}))
def test_the_tables_made_from_the_code_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == docs_tables.page(name), "make reference"


@pytest.mark.parametrize("name", docs_tables.DATA)
def test_the_data_made_from_the_code_are_current(name: str) -> None:
    assert tables.read(name) == list(docs_tables.DATA[name]()), "make reference"


def test_every_table_of_numbers_is_whole_and_named_by_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md"))
    for path in sorted(tables.DATA.iterdir()):
        assert f"](data/{path.name})" in pages, path.name
        assert len({len(row) for row in tables.read(path.stem)}) == 1, path.name


def test_what_the_pages_show_of_the_tables_is_current() -> None:
    for page, marker, rows in validation_page.shown():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert validation_page.between(text, marker, tables.as_markdown(rows)) == text, (page, marker)


@pytest.mark.long
def test_the_commands_of_the_tutorial_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in an empty folder; each of them says something, and no one complains."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 8
    for line in lines:
        name, *arguments = shlex.split(line)
        done = sweep(*arguments)
        assert (name, done.returncode, done.stderr) == ("sweep", 0, ""), line
    assert "--tensor-model-parallel-size" in (tmp_path / "flags.sh").read_text()
    assert json.loads((tmp_path / "best.json").read_text())


def test_every_column_is_documented() -> None:
    spec = EXAMPLES / "fidelity.yaml"
    columns = result_schema(prepare(load_spec(spec), spec.parent).sweep.space).names
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert [name for name in columns if f"`{name}`" not in text] == []


def test_the_figures_of_the_fidelity_page_are_measured(gpt7b: Workload, llama: Workload, h100: HardwareTable) -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    for workload, figures in (
        (gpt7b, ("437.4 ms by events, 480.9 ms by the model", "46.0 of 151.3 ms remain")),
        (llama, ("14.26 s by events, 14.77 s by the model", "(3.6 ms left)")),
    ):
        overlap = {"overlap_grad": 1, "overlap_param": 1, "overlap_pp": 0, "checkpointing": 1}
        plans = make_plans(workload, **{**workload.base._asdict(), **overlap, "fidelity": [0, 1]})
        event, simai = (dict(zip(METRICS, column, strict=True)) for column in simulate(workload, h100, plans).metrics.T)
        step = [m["step_time_s"] for m in (event, simai)]
        dp = [event[name] * 1e3 for name in ("dp_exposed_s", "dp_total_s")]
        if step[0] < 1:
            told = (
                f"{step[0] * 1e3:.1f} ms by events, {step[1] * 1e3:.1f} ms by the model",
                f"{dp[0]:.1f} of {dp[1]:.1f} ms remain",
            )
        else:
            told = (f"{step[0]:.2f} s by events, {step[1]:.2f} s by the model", f"({dp[0]:.1f} ms left)")
        assert told == figures
        assert all(figure in text for figure in figures)


@pytest.mark.parametrize(
    "name",
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md")))]
    + [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("cluster/**/*.md"))],
)
def test_links_of_the_documents_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target, section in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8")):
        page = path.parent / target if target else path
        assert target.startswith("https://") or page.exists(), f"{name}: {target}"
        assert not section or target.startswith("https://") or section in sections(page), f"{name}: {target}#{section}"


def sections(page: Path) -> set[str]:
    """Names of the headings of a page, as links write them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_list_by_task() -> None:
    listed = set(re.findall(r"\]\(([a-z_]+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in ROOT.glob("docs/*.md")} - {"README.md"}


def test_the_recipes_for_contributors_name_what_is_there() -> None:
    """Every path in backticks exists, every name of code is in the sources, every command is one of the Makefile."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [path for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.md)`", text) if not (ROOT / path).exists()] == []
    sources = "".join(
        path.read_text(encoding="utf-8") for folder in ("sim_core", "sweep", "tests") for path in (ROOT / folder).rglob("*.py")
    )
    names = re.findall(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`", text)
    assert len(names) > 50
    assert [
        name for name in names if not re.search(rf"\b{name.rpartition('.')[2]}\b", sources) and not (ROOT / name).exists()
    ] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"`make ([a-z-]+)", text + contributing) if f"\n{name}: " not in makefile] == []
