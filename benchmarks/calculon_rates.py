"""Calculon's executions a second (github.com/calculon-ai/calculon), where a clone of it can be imported.

Calculon computes a step in closed form. What is timed is its own search (AllExecutions.search) on evenly spread executions of
its own space, GPT-3 175B on 1,536 GPUs; no plan of ours is translated. It logs at every call, which takes most of its time.
"""

import importlib
import json
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import Figure, Rows, median_s

EXECUTIONS: Final = 200
GPUS, MOST_SAMPLES = 1536, 1536
HOW: Final = "git clone https://github.com/calculon-ai/calculon && PYTHONPATH=calculon make bench (with pandas, psutil)"


def imported(name: str) -> Any:
    """A module, or None where it or one that it needs is not installed; PyPI's `calculon` is another package."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def calculon_rows() -> Rows:
    """Calculon's executions a CPU second, those that fit and all."""
    llm, every = imported("calculon.llm"), imported("calculon.llm.all_executions")
    if llm is None or every is None:
        yield f"Calculon is not installed: {HOW}"
        return
    clone = Path(llm.__file__).parent.parent.parent
    application = llm.Llm.Application(json.loads((clone / "models" / "gpt3-175B.json").read_text(encoding="utf-8")))
    system = llm.System(json.loads((clone / "systems" / "h100_80g_nvl8.json").read_text(encoding="utf-8")))
    search = every.AllExecutions
    found = list(search.all_executions(application, system, GPUS, MOST_SAMPLES, "float16", [True]))
    some = found[:: max(1, len(found) // EXECUTIONS)]
    good = len(search.search(application, system, some))
    seconds = median_s(lambda: search.search(application, system, some), time.process_time)
    yield Figure(f"Calculon, GPT-3 175B on {GPUS:,} GPUs: executions", len(some) / seconds, "executions/CPU-s")
    yield Figure(f"  of them, those that fit ({good / len(some):.0%})", good / seconds, "executions/CPU-s")
