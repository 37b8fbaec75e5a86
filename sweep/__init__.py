"""Sweeps over many plans on any number of machines: spec, plan space, executors, result store, ranking.

From Python: `sweep.run(spec)` and `sweep.load(path)`, imported when they are used, so that commands start at once.
"""

TYPE_CHECKING = False  # nothing is imported before the command line can be interrupted (__main__.py)
if TYPE_CHECKING:
    from sim_core import SimError, SpecError
    from sweep.api import Result, Told, load, run
    from sweep.spec.given import Spec
    from sweep.tuning.tuner import Tuner

__all__ = ["Result", "SimError", "Spec", "SpecError", "Told", "Tuner", "load", "run"]

if not TYPE_CHECKING:  # else no misspelt name would be one for a type checker
    _MODULES = {
        "sim_core": ("SimError", "SpecError"),
        "sweep.api": ("Result", "Told", "load", "run"),
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
