"""What a release and the image are made of: each package by version and hash, the base image and actions by digest."""

from __future__ import annotations

import re
import runpy
import sys
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

LOCKED: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "locked.py"))
TEXT = (ROOT / "cluster" / "requirements.txt").read_text(encoding="utf-8")
PACKAGES = {name: (of, hashes) for name, of, hashes in LOCKED["packages"](TEXT)}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_the_image_installs_what_runs_need_at_the_versions_that_are_tested() -> None:
    pinned = LOCKED["pinned"]()
    assert {name: of for name, (of, _) in PACKAGES.items()} == {name: pinned[name] for name in LOCKED["needed"]()}
    for name in ("ray", "numba", "pyarrow", "pydantic"):
        assert PACKAGES[name][0] == version(name)


def test_every_line_is_a_package_with_hashes() -> None:
    again = "".join(
        f"{name}=={of}" + "".join(f" \\\n    --hash=sha256:{one}" for one in some) + "\n"
        for name, (of, some) in PACKAGES.items()
    )
    assert TEXT.partition("\n")[2] == again
    assert all(hashes for _, hashes in PACKAGES.values())


def test_the_bill_of_materials_names_each_package_once() -> None:
    """Required fields of CycloneDX 1.6 (bom-1.6.schema.json)."""
    bill = LOCKED["bill"]("1.2.3")
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["version"]) == ("CycloneDX", "1.6", "1.2.3")
    assert [(part["name"], part["version"]) for part in bill["components"]] == [
        (name, of) for name, (of, _) in PACKAGES.items()
    ]
    refs = [part["bom-ref"] for part in bill["components"]]
    assert bill["dependencies"] == [{"ref": "training-plan-sweep", "dependsOn": refs}]
    assert len(set(refs)) == len(refs)
    for part in bill["components"]:
        assert part["type"] == "library"
        assert re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.]+", part["purl"])
        assert {one["hashes"][0]["alg"] for one in part["externalReferences"]} == {"SHA-256"}


def test_images_and_actions_are_named_by_digest() -> None:
    cluster = ROOT / "cluster"
    bases = re.findall(r"^FROM (\S+)", (cluster / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(bases)) == 1
    assert re.search(r"@sha256:[0-9a-f]{64}$", bases[0])
    (job,) = yaml.safe_load((cluster / "nightly" / "github.yml").read_text(encoding="utf-8"))["jobs"].values()
    actions = [step["uses"] for step in job["steps"] if "uses" in step]
    assert actions
    assert [one for one in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []
