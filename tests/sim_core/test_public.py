"""What sim_core names for others: its public modules are those of the contract."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import sim_core
from sim_core import PUBLIC

ROOT = Path(__file__).parents[2]


def test_the_contract_allows_the_public_modules() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["ignore_imports"] for one in contracts if one["name"].startswith("sweep imports sim_core itself"))
    allowed = [one.removeprefix("sweep.** -> sim_core.") for one in listed]
    assert [name for name in PUBLIC if not any(fnmatch(name, one) for one in allowed)] == []
    assert [one for one in allowed if not any(fnmatch(name, one) for name in PUBLIC)] == []


def test_a_name_that_is_not_public_is_none() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'parse_yaml'"):
        getattr(sim_core, "parse_yaml")  # noqa: B009
