"""How a run is seen while it works: on the terminal, in its folder, and in a file for Prometheus."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from sweep.execution import Progress
from sweep.options import wrong
from sweep.results.folder import Folder
from sweep.show.progress import line_display, speed
from sweep.watching import telling

_OF_A_RUN = {
    "plans": "Plans of the sweep",
    "plans_done": "Plans that are done",
    "plans_per_second": "Plans per second of the last run",
    "slices_done": "Slices done by the last run",
    "slices_lost": "Attempts at a slice that the last run lost",
    "retries": "Requests to the store that the last run repeated",
    "store_errors": "Slices of the last run that the store refused at every attempt",
}
_SUCCESS = "last_success_timestamp_seconds"
_ALL = {**_OF_A_RUN, _SUCCESS: "When the command last ended with exit code 0"}


class Metrics:
    """The metrics of a command on the spec or nightly file `name`, gauges of its last run, in `file`, if there is one.

    As a context it tells that the block ended well. The library is imported only for a file: that takes 60 ms.
    """

    def __init__(self, file: Path | None, name: str) -> None:
        self.file, self.name = file, name
        self.gauges: dict[str, Any] = {}

    def __enter__(self) -> "Metrics":
        """Take over the times of the last success. Raises OptionError if the file holds something else; OSError."""
        if self.file is None:
            return self
        from prometheus_client import CollectorRegistry, Gauge
        from prometheus_client.parser import text_string_to_metric_families

        self.registry = CollectorRegistry()
        for name, text in _ALL.items():
            self.gauges[f"sweep_{name}"] = Gauge(f"sweep_{name}", text, ["sweep"], registry=self.registry)
        try:
            before = self.file.read_text() if self.file.exists() else ""
            for family in text_string_to_metric_families(before):
                for sample in family.samples:
                    gauge = self.gauges[sample.name]
                    if sample.name.endswith(_SUCCESS):
                        gauge.labels(sample.labels["sweep"]).set(sample.value)
        except (KeyError, ValueError):
            raise wrong("--metrics", str(self.file), "a file of metrics of ours; it holds something else") from None
        self.tell(self.name, {})
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not getattr(error, "exit_code", error):
            self.tell(self.name, {_SUCCESS: time.time()})

    def tell(self, sweep: str, values: dict[str, float]) -> None:
        """Take in values of a sweep, and write the file at once. Raises OSError."""
        if self.file is None:
            return
        from prometheus_client import write_to_textfile

        for name, value in values.items():
            self.gauges[f"sweep_{name}"].labels(sweep).set(value)
        write_to_textfile(str(self.file), self.registry)

    @contextmanager
    def showing(self, console: Console, folder: Folder, sweep: str = "") -> Iterator[Callable[[Progress], None]]:
        """Yield the function to call with the state of a run; `sweep`: one of several in a nightly file."""

        def tell(progress: Progress) -> None:
            self.tell(sweep or self.name, {key: getattr(progress, key) for key in _OF_A_RUN})

        with progress_display(console) as shown, telling(folder, shown, tell) as watch:
            yield watch


@contextmanager
def progress_display(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Yield the function to call with the state of a run."""
    with line_display(console) as show:
        yield lambda now: show(now.plans_done, now.plans, speed(now.plans_per_second, now.eta_s))
