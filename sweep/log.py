"""The log of a command, on standard error: warnings as they are, or all that happens as JSON."""

import json
import logging

LOG = logging.getLogger("sweep")
"""What happens while slices run. The arguments of a message are a dict: its fields."""


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, dict) else {}
        head = {"time": record.created, "level": record.levelname, "event": record.getMessage()}
        return json.dumps(head | fields, default=vars)


def log_lines(as_json: bool = False) -> None:
    """Let warnings and errors go to standard error as they are; or all that is logged, each a JSON object on its line."""
    handler = logging.StreamHandler()
    handler.setFormatter(_AsJson() if as_json else None)
    LOG.setLevel(logging.INFO if as_json else logging.WARNING)
    LOG.handlers, LOG.propagate = [handler], False
