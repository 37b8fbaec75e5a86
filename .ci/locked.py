"""What the image installs, with hashes: `cluster/requirements.txt` of constraints.txt, by `make locked`, which asks PyPI.

`--sbom FILE` writes the same as a bill of materials (CycloneDX 1.6), asking nobody.
"""

import json
import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKED = ROOT / "cluster" / "requirements.txt"
EXTRA = "ray"
BESIDE = ("boto3",)
"""Ray's autoscaler on AWS (launcher-aws.yaml)."""
HEAD = "# Made by `make locked`: what the image installs, of constraints.txt, with SHA-256 of the files for it.\n"
INDEX = "https://pypi.org/simple/{}/"
ASKED = {"Accept": "application/vnd.pypi.simple.v1+json"}
FITS = r".*(py3|cp3\d+-abi3|cp311-cp311)-(none-)?(any|(many)?linux.*)"
PACKAGE = re.compile(r"^([\w.-]+)==([^ \\]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)", re.MULTILINE)


def pinned() -> dict[str, str]:
    """Version of each package in constraints.txt."""
    lines = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    return {canonicalize_name(name): version for name, version in lines}


def needed() -> list[str]:
    """Names of all that the package needs to run on Ray, and to be built, as the metadata of what is installed say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    stated = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"][EXTRA]]
    left = [Requirement(text) for text in (*stated, *project["build-system"]["requires"], *BESIDE)]
    found: set[str] = set()
    done: set[tuple[str, str]] = set()
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        found.add(name)
        for extra in ("", *one.extras):
            if (name, extra) in done:
                continue
            done.add((name, extra))
            try:
                further = map(Requirement, distribution(name).requires or ())
            except PackageNotFoundError:  # only built with
                continue
            left += [each for each in further if not each.marker or each.marker.evaluate({"extra": extra})]
    return sorted(found)


def hashes(name: str, version: str) -> list[str]:
    """SHA-256 of the files of a version that the image can take: of any Python 3, or of its own for Linux."""
    with urllib.request.urlopen(urllib.request.Request(INDEX.format(name), headers=ASKED), timeout=60) as answer:
        files = json.load(answer)["files"]
    other = canonicalize_name(name).replace("-", "[-_.]+")
    of_version = re.compile(rf"{other}-{re.escape(version)}(-{FITS}\.whl|\.tar\.gz|\.zip)$", re.IGNORECASE)
    found = sorted(file["hashes"]["sha256"] for file in files if of_version.match(file["filename"]) and not file.get("yanked"))
    if not found:
        sys.exit(f"{name}=={version}: PyPI has no file of it")
    return found


def packages(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and hashes of each package of a locked file."""
    for name, version, rest in PACKAGE.findall(text):
        yield name, version, re.findall(r"sha256:(\w+)", rest)


def bill(version: str) -> dict[str, Any]:
    """The bill of materials of a release: every package of the image with its version and the hashes of its files."""
    parts = []
    for name, each, digests in packages(LOCKED.read_text()):
        part = {"type": "library", "name": name, "version": each, "purl": f"pkg:pypi/{name}@{each}"}
        files = [
            {"type": "distribution", "url": INDEX.format(name), "hashes": [{"alg": "SHA-256", "content": digest}]}
            for digest in digests
        ]
        parts.append({**part, "bom-ref": part["purl"], "externalReferences": files})
    own = {"type": "application", "name": "training-plan-sweep", "version": version, "bom-ref": "training-plan-sweep"}
    depends = [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": depends,
    }


def main(arguments: list[str]) -> None:
    """Write one file or the other."""
    match arguments:
        case []:
            versions = pinned()
            texts = []
            for name in needed():
                files = "".join(f" \\\n    --hash=sha256:{digest}" for digest in hashes(name, versions[name]))
                texts.append(f"{name}=={versions[name]}{files}\n")
            LOCKED.write_text(HEAD + "".join(texts))
        case ["--sbom", file]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            Path(file).write_text(json.dumps(bill(project["version"]), indent=1) + "\n")
        case _:
            sys.exit("locked.py: expected nothing, or --sbom FILE")


if __name__ == "__main__":
    main(sys.argv[1:])
