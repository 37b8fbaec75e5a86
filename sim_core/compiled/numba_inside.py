"""Which numba this room takes: it relies on places inside that numba does not promise (tests/sim_core/numba_places.py).

RANGE is what pyproject.toml allows, tested at both ends. A new numba that changes a place fails the test of that name
(tests/sim_core/test_numba_inside.py); a process refuses a numba that nobody tested.
"""

from sim_core.errors import SpecError

RANGE = ((0, 61), (0, 69))
"""The first version, and the first that is not tested."""


def check_version(version: str) -> None:
    """Raise SpecError for a numba that is not in RANGE."""
    least, most = (".".join(map(str, end)) for end in RANGE)
    if not RANGE[0] <= tuple(map(int, version.split(".")[:2])) < RANGE[1]:
        raise SpecError(
            f"numba: found {version}, expected {least} or newer, below {most}; pip install 'numba>={least},<{most}'"
        )
