"""A run as others see it: what it tells of itself every few seconds, and what somebody sees who follows it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

from sim_core import SpecError
from sweep.execution import Progress
from sweep.exits import EXIT_FAILED_PLANS, EXIT_INCOMPLETE, EXIT_NO_PLAN
from sweep.listing import Standing, standing
from sweep.ranking.ranking import failed
from sweep.results.folder import Folder
from sweep.results.heartbeat import FILE, Heartbeat
from sweep.results.store import Store

Watch = Callable[[Progress], None]
BEAT_S = 5.0
LOOK_S = 2.0
_LOOKS_TAKE = 0.1
"""At most this part of the time of whoever follows a run is spent on looking at it."""
_BYTES = 1024
"""Always as many: Arrow asks an object store for a size, then for so many bytes, between which the next may be written."""
_END_S = 10.0


@contextmanager
def telling(folder: Folder, watch: Watch, also: Watch = lambda progress: None) -> Iterator[Watch]:
    """Yield the function to call with the state of a run that writes into `folder`: it calls `watch`. Every BEAT_S a thread
    tells the state beside the slices, and to `also`. A store that does not take it is left alone: the run will say so."""
    latest: list[Progress] = []
    over = threading.Event()

    def told(progress: Progress) -> None:
        latest[:] = [progress]
        watch(progress)

    def beat() -> None:
        ended = False
        while not ended:
            ended = over.wait(BEAT_S)
            for progress in latest:
                progress.ended = ended
                with suppress(OSError):
                    also(progress)
                with suppress(OSError):
                    text = Heartbeat.model_validate(progress).model_dump_json()
                    folder.write_bytes(FILE, text.ljust(_BYTES).encode())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join(_END_S)


def following(folder: Folder) -> Iterator[Standing]:
    """How far the result in a folder is, again and again until no run writes there. Raises SpecError, OSError."""
    while True:
        begun = time.monotonic()
        at_work = Store(directory=folder).is_running()
        with suppress(SpecError, OSError) if at_work else nullcontext():  # slices may be joined while they are read
            seen = standing(folder)
            yield seen
            if seen.state != "running":
                return
        time.sleep(max(LOOK_S, (time.monotonic() - begun) / _LOOKS_TAKE))


def exit_code(last: Standing) -> int:
    """How a run has ended, as the exit code of `sweep run`; EXIT_INCOMPLETE before it had all plans."""
    if last.state != "complete":
        return EXIT_INCOMPLETE
    if failed(last.reasons):
        return EXIT_FAILED_PLANS
    return 0 if last.ok else EXIT_NO_PLAN
