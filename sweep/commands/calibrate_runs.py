"""x"""


def runs() -> None:
    """x"""
