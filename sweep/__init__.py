"""Sweeps over many plans on any number of machines: spec, plan space, executors, result store, ranking.

From Python: `sweep.run(spec)` and `sweep.load(path)`, imported when they are used, so that commands start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep.api import Result, load, run

__all__ = ["Result", "load", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("sweep.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
