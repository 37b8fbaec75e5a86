"""Choose and start the executor of a sweep. Ray is imported only if it is asked for."""

import os
import secrets
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from enum import StrEnum

from sim_core import SpecError
from sweep.executors import Executor, InlineExecutor
from sweep.executors.local import LocalExecutor
from sweep.options import OptionError
from sweep.results.folder import Folder

_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_DEFAULTS = {
    "RAY_task_oom_retries": "3",  # otherwise Ray retries a slice that runs out of memory forever
    "RAY_COLOR_PREFIX": "0",  # no control codes in a job's log
    "RAY_USAGE_STATS_ENABLED": "0",  # a Ray started here sends no reports
}


class Kind(StrEnum):
    """Where slices run."""

    local = "local"
    ray = "ray"


def check_workers(kind: Kind, workers: int | None) -> None:
    """Raise OptionError if this executor cannot have so many workers."""
    if kind is Kind.ray and workers == 0:
        raise OptionError("--workers: found 0, expected 1 or more with --executor ray")


@contextmanager
def opened(kind: Kind, workers: int | None, limit_s: float, writer: str, out: Folder) -> Iterator[Executor]:
    """A started executor, stopped at the end of the block. `workers` 0: run in this process; None: use all CPUs.

    `writer` says who writes the slices: `driver`, `worker`, or `auto`, the workers if all of them can reach `out`. Raises
    SimError.
    """
    if kind is Kind.local:
        count = workers if workers is not None else len(os.sched_getaffinity(0))
        yield LocalExecutor(count, limit_s) if count else InlineExecutor()
        return
    check_workers(kind, workers)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    with_own_token(os.environ)
    try:
        from sweep.executors.ray import RayExecutor
        from sweep.executors.ray_head import joined
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise OptionError("--executor ray: Ray is not installed (pip install 'ray[default]')") from None
    with joined(workers) as (head, own):
        everywhere = own or out.local is None
        at_driver = writer == "driver" or (writer == "auto" and not everywhere)
        yield RayExecutor(at_driver=at_driver, limit_s=limit_s, head=head)


def with_own_token(environment: MutableMapping[str, str]) -> None:
    """Give a Ray that will be started here a token of its own, unless the user has chosen a mode.

    Ray itself would write one to ~/.ray/auth_token; every later `ray start` would then ask for it, but `ray job submit`
    does not send it.
    """
    if "RAY_ADDRESS" not in environment and "RAY_AUTH_MODE" not in environment:
        environment.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def check_persistent(out: str | None, what: str = "--out") -> None:
    """Raise SpecError if a Ray job would write into its own working folder, which is deleted with the job."""
    if os.environ.get(_RAY_JOB) and not (out and ("://" in out or os.path.isabs(out))):
        raise SpecError(
            f"{what}: a job's working folder is deleted when the job ends; give a URI, or an absolute path on the head node"
        )
