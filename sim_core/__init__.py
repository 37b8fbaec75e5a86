"""Files in, numbers out: workloads, hardware and parallel plans, simulated by a compiled event engine.

What `__init__.pyi` names is the public interface of the package, which does not know sweeps, clusters or result files. It is
imported on demand: a command that lists presets needs no engine. Beside it, the modules of `PUBLIC` are for others as they
stand.
"""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

PUBLIC = (
    "compiling",
    "documents",
    "hardware.kernels.attention",
    "hardware.kernels.device",
    "hardware.kernels.gemm",
    "hardware.surface",
    "limits",
    "masking",
    "models.features",
    "models.releases",
    "places",
    "records",
    "warming",
    "workloads.facts",
)
"""Modules of their own that others may import."""


@cache
def _places() -> dict[str, tuple[str, str]]:
    """Module of each public name, and its name there."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (code for code in stub.body if isinstance(code, ast.ImportFrom))
    return {one.asname or one.name: (str(code.module), one.name) for code in imports for one in code.names}


def __dir__() -> list[str]:
    return sorted(_places())


def __getattr__(name: str) -> object:
    if name in (places := _places()):
        place, own = places[name]
        module = import_module(place)
        globals()[name] = found = getattr(module, own) if hasattr(module, own) else import_module(f"{place}.{own}")
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
