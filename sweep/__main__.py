"""Entry point of `python -m sweep` and `sweep`: Ctrl-C during the slow imports leaves no traceback."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    try:
        from sweep.cli import main as command_line
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    command_line()


if __name__ == "__main__":
    main()
