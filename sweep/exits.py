"""Exit codes of commands (nightly has its own, sweep/nightly/night.py)."""

from __future__ import annotations

from typing import Final

EXIT_INPUT: Final = 1
EXIT_FAILED_PLANS: Final = 3
EXIT_NO_PLAN: Final = 4
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143
