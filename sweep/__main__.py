"""`python -m sweep` and the command `sweep`: imports take a while, and a Ctrl-C in the meantime is no traceback."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    try:
        from sweep.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
