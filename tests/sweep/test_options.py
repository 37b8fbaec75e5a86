"""Wrong options: at least twenty of each command, each answered by one line that names it, and exit code 2."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from sweep.cli import COMMANDS, implementation
from tests.sweep.commands import sweep
from tests.sweep.conftest import spec_in

AXES = {"tp": [1, 2, 4], "ga": [1, 4], "checkpointing": ["none", "full"]}


def commands() -> dict[str, Any]:
    """Every command with its parameters, those of `sweep calibrate` one by one."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        loaded = implementation(name)
        if not isinstance(loaded, typer.Typer):
            function, loaded = loaded, typer.Typer(add_completion=False)
            loaded.command(name)(function)
        command: Any = typer.main.get_command(loaded)
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {each}": one for each, one in inner.items()}
    return found


ALL = commands()

UNKNOWN = (
    "--nope", "--nope=1", "--nope 1", "-x", "-x 1", "--HELP", "--jsom", "--wher", "--verbose", "-v", "--dry", "--output-file x",
    "--no-color", "--Top 3", "--seed 1", "--threads=4", "--debug", "--config x", "--by-name", "--force", "-1", "--yes",
)  # fmt: skip
"""Options that no command has: the word that is named, then what follows."""

MEANT = {
    "fit": [
        ("nope", "MODEL: unknown model 'nope', nearest valid: "),
        ("README.md", "MODEL: README.md: found no model: expected Megatron-LM arguments"),
        ("llama3-8b --hardware nope", "--hardware: unknown hardware preset 'nope'"),
        ("llama3-8b --stack nope", "--stack: unknown stack 'nope', nearest valid: nemo"),
        ("llama3-8b --set tp=x", "--set: tp: found 'x', expected a whole number from 1 to 65,536"),
        ("llama3-8b --set nope=1", "--set: nope: unknown name, nearest valid: "),
        ("llama3-8b --set tp", "--set: found tp, expected key=value, such as tp=8"),
        ("llama3-8b --set checkpointing=ful", "--set: checkpointing: found 'ful', nearest valid: full, file"),
        ("llama3-8b --set activation_offload=2", "--set: activation_offload: found '2', valid: attn_norm, "),
        ("llama3-8b --set optimizer_offload=3", "--set: optimizer_offload: found '3', expected a number from 0 to 1"),
        ("llama3-8b --set hardware.nope=1", "--set hardware.nope=1: hardware.nope: unknown number, nearest valid: "),
        ("llama3-8b --set model.layers=x", "--set model.layers=x: workload.model: llama3-8b: layers: found 'x', "),
    ],
    "rank": [
        ("@R --by nope", "--by: unknown column 'nope', nearest valid: "),
        ("@R --by step_time,tp", "--by: unknown column 'step_time,tp', nearest valid: step_time_s"),
        ("@R --by checkpointing", "--by: found checkpointing, which holds words, expected a column of numbers"),
        ("@R --by ''", "--by: found '', expected a value (Column to rank by)"),
        ("@R --columns ,", "--columns: found ,, expected names of columns with commas between"),
        ("@R --columns tp,,pp", "--columns: found tp,,pp, expected names of columns"),
        ("@R --columns nope", "--columns: unknown column 'nope'"),
        ("@R --columns all,tp", "--columns: unknown column 'all'"),
        ("@R --pareto ,", "--pareto: found ,, expected names of columns"),
        ("@R --pareto nope,tp", "--pareto: unknown column 'nope'"),
        ("@R --pareto tp,tp", "--pareto: found tp,tp, expected names of columns with commas between, each once"),
        ("@R --pareto tp --pareto ga", "--pareto: found 2 of them, expected one"),
        ("@R --pareto tp,ga --by tp", "--by: found beside --pareto"),
        ("@R --pareto tp,ga --descending", "--descending/--ascending: found beside --pareto"),
        ("@R --descending --ascending", "--descending/--ascending: found 2 of them, expected one"),
        ("@R --per nope", "--per: unknown column 'nope'"),
        ("@R --per ,", "--per: found ,, expected names of columns"),
        ("@R --where nope=1", "--where 'nope=1': unknown column 'nope'"),
        ("@R --where tp", "--where 'tp': found a value of type BIGINT, expected a condition"),
        ("@R --where ' '", "--where: found ' ', expected a value (Condition in SQL"),
        ("@R --top 0", "--top: found 0, expected a whole number, 1 or more"),
        ("@R --top 1_0", "--top: found 1_0, expected a whole number, 1 or more"),
        ("@R --top 1.0", "--top: found 1.0, expected a whole number, 1 or more"),
        ("@R --format xml", "--format: found xml, expected one of table, csv, json, parquet"),
        ("@R --format parquet", "--format parquet needs --output FILE"),
        ("@R --json --format csv", "--json: found --format csv beside it, expected one of them"),
        ("@R --output x.foo", "--output x.foo: found .foo, expected "),
        ("@R --output /nope/x.csv", "--output: found /nope/x.csv, expected a file in a folder that is there"),
        ("@R --output @D", "--output: found @D, expected a file; it is a folder"),
        ("@R --measured nope.csv", "--measured: found nope.csv, expected a file that is there"),
        ("@R --stable --pareto tp", "--pareto: found beside --stable, which takes only --measured, --by, "),
        ("@R --stable --by tp", "--by tp: expected a column in proportion to time"),
    ],
    "status": [
        ("@R --page @D", "--page: found @D, expected a file; it is a folder"),
        ("@R --page /nope/x.html", "--page: found /nope/x.html, expected a file in a folder that is there"),
        ("@R more", "more: is one argument too many for sweep status, expected none after DIRECTORY"),
    ],
    "doctor": [
        ("--cluster", "--cluster: found no RAY_ADDRESS in the environment, expected the address of a Ray cluster"),
        ("@D more", "more: is one argument too many for sweep doctor, expected none after DIRECTORY"),
    ],
    "compare": [
        ("@R @R --by nope", "--by: unknown column 'nope'"),
        ("@R @R --by status", "--by: found status, which holds words"),
        ("@R @R --per nope", "--per: found nope, which is not a column of both results"),
        ("@R @R --format html", "--format html needs --output FILE"),
        ("@R @R --output x.foo", "--output x.foo: found .foo, expected "),
        ("@R @R --nights @D", "--nights @D: no night there has the result out"),
        ("@R @R --last 5", "--last: found without --nights, expected both"),
        ("@R", "NEW: found none, expected one (Folder of results to compare with OLD)"),
        ("@R @R more", "more: is one argument too many for sweep compare, expected none after OLD NEW"),
    ],
    "explain": [
        ("@R nope", "PLAN: found nope, expected a number from 0 to 11 (column plan of `sweep rank`), or best"),
        ("@R 12", "PLAN: found 12, expected a number from 0 to 11"),
        ("@R 0 --against 12", "--against: found 12, expected a number from 0 to 11"),
        ("@R 0 --spec nope.yaml", "--spec: found nope.yaml, expected a file that is there"),
    ],
    "export": [
        ("@R --plan nope", "--plan: found nope, expected a number from 0 to 11"),
        ("@S --plan best", "--plan: found best, expected the number of a plan (best needs a folder of results)"),
        ("@S --plan 12", "--plan 12: the space holds plans 0 to 11"),
        ("@R --plan 0 --set tp=1", "--set: @R is a folder of results"),
        ("@S --plan 0 --set nope=1", "--set nope=1: nope: unknown key"),
        ("@S --plan 0 --set axes.tp", "--set: found axes.tp, expected key=value, such as axes.tp=[1,2,4]"),
        ("@S --plan 0 --output /nope/x", "--output: found /nope/x, expected a file in a folder that is there"),
        ("@S --plan 0 --spec @S", "--spec: found beside a spec, which takes --set"),
        ("@S", "--plan: found none, expected one (Its number, as in the results; best: the one to launch)"),
    ],
    "timeline": [
        ("@R", "PLAN: found none, and @R holds results of a sweep: which plan?"),
        ("@R nope", "PLAN: found nope, expected a number from 0 to 11"),
        ("@R 0 --stages 9", "--stages 9: found '9', expected stages from 0 to 0"),
        ("@R 0 --step 1", "--step: found beside a folder of results, which takes PLAN, "),
        ("@D/w.txt --stages 0", "--stages: found beside @D/w.txt (no result of a sweep), which takes --step and --set"),
        ("@D/w.txt --set nope=1", "--set: nope: unknown key"),
    ],
    "whatif": [
        ("@R 0", "OPTIONS: found none, expected one of --gpus, --nic, "),
        ("@R 0 --nic 3", "--nic: found '3', expected a number with its unit"),
        ("@R 0 --device nope", "--device: unknown hardware preset 'nope'"),
        ("@R 0 --tokens x", "--tokens: found 'x', expected a number above 0, such as 300B"),
        ("@R 0 --price nan", "--price: found nan, expected a number, 0 or more"),
        ("@R 0 --price 2", "--price: the result has no budget; say --tokens, too"),
        ("@R 0 --sequence 4096", "--sequence: a workload file tells the times of its own sequence only"),
        ("@R 12 --gpus 8", "PLAN: found 12, expected a number from 0 to 11"),
        ("@R 0 --gpus 8 --spec nope.yaml", "--spec: found nope.yaml, expected a file that is there"),
    ],
    "report": [
        ("@R --output /nope/x.html", "--output: found /nope/x.html, expected a file in a folder that is there"),
        ("@R --measured /nope.csv", "--measured: found /nope.csv, expected a file that is there"),
    ],
    "hardware": [
        ("H100-SXM --gemm 1,2", "--gemm: found '1,2', expected three whole numbers"),
        ("--gemm 1,1,1", "--gemm: found without NAME, expected both"),
        ("--yaml", "--yaml: found without NAME, expected both"),
        ("H100-SXM --json --yaml", "--yaml: found beside --json, which takes NAME"),
        ("H100-SXM --gemm 1,1,1 --yaml", "--yaml: found beside --gemm, which takes NAME"),
    ],
    "model": [
        ("llama3-8b --set x", "--set: found x, expected NAME=VALUE"),
        ("llama3-8b --set layers=x", "--set: llama3-8b: layers: found 'x', expected a whole number"),
        ("llama3-8b --set nope=1", "--set: llama3-8b: nope: unknown key"),
        ("--set layers=3", "--set: found without NAME, expected both"),
        ("llama3-8b --json --yaml", "--yaml: found beside --json"),
    ],
    "init": [
        ("llama3-8b --hardware nope", "--hardware: unknown hardware preset 'nope'"),
        ("llama3-8b --stack megatron", "--stack: unknown stack 'megatron', nearest valid: megatron-"),
        ("@D/w.txt --stack nemo", "--stack: found nemo, expected none: the times of "),
        ("llama3-8b --gpus 1e3", "--gpus: found 1e3, expected a whole number from 1 to "),
        ("llama3-8b --micro-batch 1 --output @D/n.yaml", "--micro-batch: found 1, expected none: llama3-8b is a model"),
        ("llama3-8b --output @S", "--output: found @S, expected a file that is not there yet"),
    ],
    "inspect": [
        ("@D/w.txt --set pp", "--set: found pp, expected key=value"),
        ("@D/w.txt --set pp=0", "--set: pp: found '0', expected a whole number from 1 to 4,096"),
        ("@D/w.txt --record x", "--record: found x, expected NAME=VALUE"),
        ("@D/w.txt --record nope=1", "--record nope: found '1', expected keep, model, a time"),
    ],
    "simulate": [
        ("", "FILE: found neither it nor --model, expected one of them"),
        ("@D/w.txt --model llama3-8b", "FILE: found it and --model, expected one of them"),
        ("--model nope", "--model: unknown model 'nope'"),
        ("--model llama3-8b --hardware nope", "--hardware: unknown hardware preset 'nope'"),
        ("--model llama3-8b --set tp=x", "--set: tp: found 'x', expected a whole number from 1 to 65,536"),
        ("--model llama3-8b --set hardware.nic_bandwidth=3", "--set hardware.nic_bandwidth=3: "),
        ("--model llama3-8b --set model.layers=0", "--set model.layers=0: "),
        ("--model llama3-8b --record a=1", "--record: found beside --model"),
    ],
    "replay": [
        ("@D/w.txt --ranks --stages", "--ranks/--stages: found 2 of them, expected one"),
        ("@D/w.txt --set nope=1", "--set: nope: unknown key"),
    ],
    "tune": [
        ("@R --add nope", "--add nope: found 'nope', expected plan=NUMBER"),
        ("@R --add plan=1 --failed nope", "--failed nope: expected oom, crash, slow"),
        ("@R --next 0", "--next: found 0, expected a whole number from 1"),
        ("@R --regret 3parsec", "--regret 3parsec: expected a share from 0% to 100%"),
        ("@R --measured nope.csv", "--measured nope.csv: No such file"),
    ],
    "calibrate stack": [
        ("--plan --device nope", "--device: unknown hardware preset 'nope'"),
        ("--plan --stack nope", "--stack: unknown stack 'nope', nearest valid: "),
        ("--plan --model nope", "--model: unknown model 'nope', nearest valid: "),
        ("--plan --runs 99", "--runs: found 99, expected a whole number from 3"),
    ],
    "validate": [
        ("--set nope", "--set nope: found none, valid: "),
        ("--format md --json", "--json: found --format md beside it, expected one of them"),
        ("--by set --rows", "--rows: found beside --by"),
    ],
    "run": [
        ("@S --set nope=1", "--set nope=1: nope: unknown key"),
        ("@S --set axes.tp=[x]", "--set axes.tp=[x]: axes.tp: found 'x', expected a whole number"),
        ("@S --set axes.tp=[", "--set axes.tp=[: the value is not valid YAML"),
        ("@S --out nope://x", "--out: nope://x: cannot be opened; expected a folder or a URI"),
        ("@S --out @S", "--out: found @S, expected a folder; it is a file"),
        ("@S --executor ray --workers 0", "--workers: found 0, expected 1 or more with --executor ray"),
        ("@S --executor rey", "--executor: found rey, expected one of local, ray"),
        ("@S --slice-limit nan", "--slice-limit: found nan, expected a number, 1 or more"),
        ("@S --slice-limit 1e999", "--slice-limit: found 1e999, expected a number, 1 or more"),
    ],
    "search": [
        ("@S --within 1.5", "--within: found 1.5, expected a number from 0"),
        ("@S --set axes.tp", "--set: found axes.tp, expected key=value"),
        ("@S --out @S", "--out: found @S, expected a folder; it is a file"),
    ],
    "nightly": [
        ("@N --set nope=1", "--set nope=1: nope: unknown key"),
        ("@N --set root=", "--set root=: root: found 'None', expected a text"),
        ("@N --set thresholds.best=x", "--set thresholds.best=x: thresholds.best: found 'x', expected a fraction"),
    ],
    "calibrate nccl": [
        ("@S --device nope", "--device: unknown hardware preset 'nope'"),
        ("@S --nics x", "--nics: found x, expected a number of NICs and Gb/s, such as 8x400G"),
        ("@S --output @D", "--output: found @D, expected a file; it is a folder"),
    ],
    "calibrate kernels": [
        ("", "FILE: found none, expected what measure_kernels.py has written"),
        ("--script --device x", "--device: found beside --script, which takes nothing else"),
        ("@S --output @S", "--output: found @S, expected a file that is not there yet"),
    ],
    "calibrate runs": [
        ("@S --output @S", "--output: found @S, expected a file that is not there yet"),
        ("@S --device nope", "--device: unknown hardware preset 'nope'"),
    ],
}
"""By command: what was given, and how the message begins. @R: a result, @S: its spec, @N: a nightly file, @D: their folder."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("options")
    spec, out = spec_in(folder, axes=AXES), folder / "out"
    assert sweep("run", spec, "--out", out, "--workers", 0, "--quiet").returncode == 0
    night = folder / "night.yaml"
    night.write_text(f"name: n\nroot: {folder / 'nights'}\nsweeps: [{{spec: small.yaml}}]\n", encoding="utf-8")
    return {"@R": str(out), "@S": str(spec), "@N": str(night), "@D": str(folder)}


def by_declaration(command: Any) -> Iterator[tuple[str, str]]:
    """What no option of its kind can be: without a value, empty, given twice, a flag with a value; and how the message begins.

    They come before whatever the command needs besides, so that they are told without it.
    """
    for param in command.params:
        names = [name for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]
        if param.param_type_name == "argument" or "--help" in names:
            continue
        shown = "/".join(names)
        if param.is_flag:
            yield f"{names[0]}=1", f"{names[0]}: found a value, expected none"
            continue
        yield names[0], f"{names[0]}: found no value, expected one"
        if not param.multiple:
            yield f"{names[0]} ''", f"{shown}: found '', expected "
            yield f"{names[0]} 1 {names[0]} 2", f"{shown}: found 2 of them, expected one"


@pytest.mark.parametrize("name", ALL)
def test_wrong_options_are_one_line_that_names_them(name: str, places: dict[str, str]) -> None:
    cases = [(word, f"{shlex.split(word)[0].partition('=')[0]}: is no option of sweep {name}, ") for word in UNKNOWN]
    known = [each for param in ALL[name].params for each in param.opts]
    cases = [case for case in cases if case[0].partition("=")[0].split()[0] not in known]
    cases += [*by_declaration(ALL[name]), *MEANT.get(name, ())]
    assert len(cases) >= 20
    for given, told in cases:
        words = shlex.split(given)
        for sign, place in places.items():
            words, told = [word.replace(sign, place) for word in words], told.replace(sign, place)
        done = sweep(*name.split(), *words)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
        assert (done.returncode, done.stdout, len(errors)) == (2, "", 1), (given, done)
        assert errors[0].startswith(f"error: {told}"), (given, errors[0])


def test_every_command_has_wrong_options_that_only_it_can_have() -> None:
    only_options_of_others = {"ls", "show", "compact", "stack", "schema"}
    assert set(MEANT) | only_options_of_others == set(ALL)


def test_a_command_that_is_not_there_is_answered_with_the_nearest() -> None:
    for words, told in (
        (("rnk",), "error: rnk: is no command of sweep, nearest valid: rank"),
        (("calibrate", "ncll"), "error: ncll: is no command of sweep calibrate, nearest valid: nccl"),
        (("--nope",), "error: --nope: is no option of sweep, "),
    ):
        done = sweep(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(told)


def test_options_that_say_nothing_twice_may_be_given_twice(places: dict[str, str]) -> None:
    done = sweep("rank", places["@R"], "--json", "--json", "--per", "tp", "--per", "ga")
    assert (done.returncode, done.stderr) == (0, "")
    assert sweep("rank", places["@R"], "--per", "", "--json").returncode == 0
