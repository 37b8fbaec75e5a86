"""Which executor runs a sweep, and who writes its slices; Ray is loaded only where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from sim_core import SpecError
from sweep.executors import Executor
from sweep.executors.inline import InlineExecutor
from sweep.executors.local import LocalExecutor
from sweep.place import Place

_RAY_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_DEFAULTS: Final = {
    "RAY_task_oom_retries": "3",  # else Ray tries a slice that runs out of memory for ever
    "RAY_COLOR_PREFIX": "0",  # no control codes in the log of a job
    "RAY_USAGE_STATS_ENABLED": "0",  # a Ray of our own calls nobody
}


class Kind(StrEnum):
    """Where slices run."""

    local = "local"
    ray = "ray"


@contextmanager
def opened(kind: Kind, workers: int | None, limit_s: float, writer: str, out: Place) -> Iterator[Executor]:
    """The executor, started; it ends with the block. `workers` 0: in this process; None: all CPUs.

    `writer` is `driver`, `worker` or `auto`: the workers, where every one of them can reach `out`. Raises SimError.
    """
    if kind is Kind.local:
        count = workers if workers is not None else len(os.sched_getaffinity(0))
        yield LocalExecutor(count, limit_s) if count else InlineExecutor()
        return
    if workers == 0:
        raise SpecError("--workers 0: is for --executor local")
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from sweep.executors.ray import RayExecutor, joined
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise SpecError("--executor ray: Ray is not installed (pip install 'ray[default]')") from None
    with joined(workers) as own:
        everywhere = own or out.local is None
        yield RayExecutor(at_driver=writer == "driver" or (writer == "auto" and not everywhere), limit_s=limit_s)


def check_kept(out: str | None, what: str = "--out") -> None:
    """Raise SpecError where a job on a cluster would write into its own folder, which is deleted with the job."""
    if os.environ.get(_RAY_JOB) and not (out and ("://" in out or os.path.isabs(out))):
        raise SpecError(f"{what}: a job's working folder is deleted after it; give a URI, or an absolute path on the head node")
