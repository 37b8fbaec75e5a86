"""`NotSimulated`: why a measured run cannot be simulated."""

from __future__ import annotations


class NotSimulated(Exception):
    """The row lacks something, or asks for something that the simulator does not have; the message says what."""
