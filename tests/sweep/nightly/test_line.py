"""A night that is lost does not let a regression pass: files gone, moved, renamed, damaged; and what is accepted by whom."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.nightly.night import Outcome
from sweep.results.folder import Folder
from tests.sweep.fault_proxy import faulty
from tests.sweep.nightly.conftest import Sandbox, SandboxMaker, once_on_s3


def emptied(folder: Folder) -> None:
    """Delete all files of a folder, and the folder."""
    for name in folder.names():
        folder.delete(name)
    folder.remove_if_empty()


def all_nights(sandbox: Sandbox) -> None:
    for name in (sandbox.nights.root / "nights").subfolders():
        emptied(sandbox.nights.folder(name))
    emptied(sandbox.nights.root / "nights")


LOSSES: dict[str, tuple[Callable[[Sandbox, Outcome, Outcome], None], str]] = {
    "its record": (lambda s, first, last: last.folder.delete("night.json"), "nights/{last}/night.json is missing"),
    "the newest": (lambda s, first, last: emptied(last.folder), "nights/{last}/night.json is missing"),
    "one before": (lambda s, first, last: emptied(first.folder), "nights/{first}/night.json is missing"),
    "the list": (lambda s, first, last: (s.nights.root / "nights").delete("line.json"), "nights/line.json is missing"),
    "all nights": (lambda s, first, last: all_nights(s), "no night has results/a-"),
}


@pytest.mark.parametrize(("anywhere", "what"), once_on_s3(LOSSES), indirect=["anywhere"])
def test_what_is_lost_ends_every_night_until_it_is_accepted(anywhere: Sandbox, what: str) -> None:
    anywhere.write(sweeps=["a.yaml"])
    first = anywhere.night()
    anywhere.change_network("49 GB/s")
    last = anywhere.night()
    lose, told = LOSSES[what]
    lose(anywhere, first, last)
    anywhere.change_network()
    for _ in range(2):
        done = anywhere.here()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert told.format(first=first.night, last=last.night) in done.stderr
        assert "accept that: sweep nightly ack FILE --who NAME --why TEXT" in done.stderr
    done = anywhere.ack()
    assert done.returncode == 0, done.stderr
    assert told.format(first=first.night, last=last.night) in done.stdout
    after = anywhere.night()
    compared = what in ("its record", "the newest", "one before", "the list")
    assert after.code == (1 if compared else 0), "compared with the night that is left"
    lines = anywhere.status().stdout.splitlines()
    assert any("acknowledged by ada (seen): " in line for line in lines[1:]), "a line each"


@pytest.mark.parametrize("name", ["20261122T023000Z-00000000", "renamed"])
def test_a_renamed_night_is_missed(sandbox: Sandbox, name: str) -> None:
    night = sandbox.night()
    path = Path(str(night.folder))
    path.rename(path.with_name(name))
    sandbox.change_network()
    done = sandbox.here()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert night.night in done.stderr


def test_a_line_of_an_earlier_version_has_no_list(sandbox: Sandbox) -> None:
    """Folders without a record tell, and results without a night."""
    sandbox.write(sweeps=["a.yaml"])
    nights = [sandbox.night()]
    sandbox.change_network("49 GB/s")
    nights.append(sandbox.night())
    for night in sandbox.nights.read():
        night.listed = False
        sandbox.nights.write(night)
    (sandbox.nights.root / "nights").delete("line.json")
    kept = sandbox.folder / "kept"
    shutil.copytree(str(nights[1].folder), kept)
    shutil.rmtree(str(nights[1].folder))
    with pytest.raises(SpecError, match="no night has results/a-"):
        sandbox.night()
    shutil.copytree(kept, str(nights[1].folder))
    nights[1].folder.delete("night.json")
    with pytest.raises(SpecError, match=rf"nights/{nights[1].night}/night\.json is missing"):
        sandbox.night()
    nights[1].folder.write_bytes("night.json", (kept / "night.json").read_bytes())
    assert sandbox.night().did_nothing


def test_a_damaged_list_is_named(sandbox: Sandbox) -> None:
    sandbox.night()
    (sandbox.nights.root / "nights").write_bytes("line.json", b'{"nights": [')
    with pytest.raises(SpecError, match=r"nights/line\.json: is damaged \(.*\); restore it from a copy, or delete this file"):
        sandbox.night()


def test_what_retention_deletes_is_no_loss(sandbox: Sandbox) -> None:
    sandbox.write(sweeps=["a.yaml"], keep={"nights": 1}, thresholds={"best": None, "median_step": None})
    for rate in ("49 GB/s", "48 GB/s", "47 GB/s", "46 GB/s"):
        sandbox.change_network(rate)
        assert sandbox.night().code == 0
    line = json.loads((sandbox.nights.root / "nights").read_bytes("line.json"))
    assert (len(line["nights"]), line["last"]) == (3, 4)
    (sandbox.nights.folder(line["nights"][-1])).delete("night.json")
    with pytest.raises(SpecError, match="is missing"):
        sandbox.night()


@pytest.mark.parametrize("name", ["night.json", "line.json"])
def test_a_record_that_the_store_took_and_lost_is_told_that_night(
    make_sandbox: SandboxMaker, bucket: str, s3_server: str, name: str
) -> None:
    with faulty(s3_server) as faults:
        sandbox = make_sandbox(f"{bucket}/nightly?endpoint_override={faults.address}&scheme=http&region=us-east-1")
        sandbox.write(sweeps=["a.yaml"])
        sandbox.night()
        sandbox.change_network()
        faults.only, faults.loses = name, 1.0
        done = sandbox.here()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert name in done.stderr
        faults.loses = 0.0
        assert sandbox.here().returncode == 1


def test_nothing_to_acknowledge(sandbox: Sandbox) -> None:
    """Neither before the first night, nor after a good one, nor twice; and of a loss and a regression one at a time."""
    assert sandbox.ack().returncode == 2
    sandbox.night()
    done = sandbox.ack()
    assert (done.returncode, done.stderr) == (2, f"error: {sandbox.root}: nothing to acknowledge\n")
    sandbox.change_network()
    worse = sandbox.night()
    assert worse.code == 1
    sandbox.nights.folder(sandbox.nights.read()[0].night).delete("night.json")
    assert "is missing" in sandbox.ack().stdout
    assert sandbox.here().returncode == 1, "the regression is not accepted by that"
    assert worse.night in sandbox.ack().stdout
    assert sandbox.here().returncode == 0
    assert sandbox.ack().returncode == 2
