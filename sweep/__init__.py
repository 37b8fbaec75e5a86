"""Sweeps over many plans on any number of machines: spec, plan space, executors, result store, ranking.

From Python: `sweep.run(spec)`, `sweep.load(path)` and others by the names of the commands, imported when they are used, so
that commands start at once.
"""

import sys

TYPE_CHECKING = False  # nothing is imported before the command line can be interrupted (__main__.py)
if TYPE_CHECKING:
    from sim_core import SimError, SpecError
    from sweep.api import Result, Table, Told, init, load, run, search, tune, what_if
    from sweep.spec.given import Spec
    from sweep.tuning.tuner import Tuner

_API = ("Result", "Table", "Told", "init", "load", "run", "search", "tune", "what_if")
__all__ = [
    "Result",
    "SimError",
    "Spec",
    "SpecError",
    "Table",
    "Told",
    "Tuner",
    "init",
    "load",
    "run",
    "search",
    "tune",
    "what_if",
]

if not TYPE_CHECKING:  # else no misspelt name would be one for a type checker
    _MODULES = {
        "sim_core": ("SimError", "SpecError"),
        "sweep.api": _API,
        "sweep.spec.given": ("Spec",),
        "sweep.tuning.tuner": ("Tuner",),
    }

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__

    class _Package(type(sys)):
        """This module: `search` is the function, also once the package of that name is imported."""

        @property
        def search(self) -> object:
            return __getattr__("search")

        @search.setter
        def search(self, package: object) -> None:
            pass

    sys.modules[__name__].__class__ = _Package
