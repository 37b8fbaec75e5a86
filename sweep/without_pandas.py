"""Processes without pandas: Arrow imports it for its first array where it is installed, a third of a second."""

import sys


class _NoPandas:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def without_pandas() -> None:
    """Let this process import no pandas from now on: no command needs it, nor its workers."""
    sys.meta_path.insert(0, _NoPandas)
