"""What sim_core names for others: its public modules are those of the contract, and names that moved there still work."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import sim_core
from sim_core import PUBLIC
from sim_core.documents import parse_yaml

ROOT = Path(__file__).parents[2]


def test_the_contract_allows_the_public_modules() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["ignore_imports"] for one in contracts if one["name"].startswith("sweep imports sim_core itself"))
    allowed = [one.removeprefix("sweep.** -> sim_core.") for one in listed]
    assert [name for name in PUBLIC if not any(fnmatch(name, one) for one in allowed)] == []
    assert [one for one in allowed if not any(fnmatch(name, one) for name in PUBLIC)] == []


def test_a_name_that_moved_still_works_and_says_where_it_is() -> None:
    with pytest.warns(FutureWarning, match=r"sim_core.parse_yaml is now sim_core.documents.parse_yaml; .* refused from 0.4 on"):
        assert getattr(sim_core, "parse_yaml") is parse_yaml  # noqa: B009
    with pytest.raises(AttributeError, match="has no attribute 'parse_jaml'"):
        getattr(sim_core, "parse_jaml")  # noqa: B009
