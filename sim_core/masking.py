"""Addresses as they may be shown: without the keys, secrets and tokens in them, however they are written."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+")  # one slash: a path made of an address has lost the other
_AFTER_HOST = re.compile(r"[/?#]|\Z")
_OPTION = re.compile(r"(?<=[?&#])(?=\S)[^&]+")
_NAME = re.compile(r"[A-Za-z_.-]{2,40}")
_HARMLESS = re.compile(
    r"(region|scheme|endpoint_override|allow_bucket_creation|allow_bucket_deletion|allow_delayed_open|user|replication|"
    r"smart_defaults|force_virtual_addressing|tls_ca_file_path|tls_verify_certificates|retry_limit_seconds|buffer_size)"
    r"=[\w.:/-]*(?![^\s,;)'\"])"
)
"""Options of addresses that may be shown; any other may be a secret."""
_BREAKS = re.compile(r"[^\w%+-]+")
_HIDDEN = "***"
_LEAST = 4
"""Characters of a part of a secret that is looked for in texts that others wrote about its address."""


def masked(text: object) -> str:
    """`text` with *** in place of what addresses in it hide: users, passwords, and options that are not known as harmless.

    Where an address ends in a text cannot be told: mask an address by itself before it becomes part of one.
    """
    whole = str(text)
    first = _START.search(whole)
    if first is None:
        return whole
    pieces, at = [], 0
    for start, stop in _users(whole):
        pieces += [whole[at:start], _HIDDEN]
        at = stop
    shown = "".join([*pieces, whole[at:]])
    return shown[: first.end()] + _OPTION.sub(_option, shown[first.end() :])


def _users(text: str) -> Iterator[tuple[int, int]]:
    """Where addresses name a user: up to the last @, since a password may hold anything, also slashes; with what follows it,
    if it could be part of an option."""
    last, done = text.rfind("@"), 0
    for start in _START.finditer(text):
        at = start.end()
        after = _AFTER_HOST.search(text, at)
        host = text[at : after.start() if after else None]
        end = last if (":" in host or "%3a" in host.lower()) else at + host.rfind("@") if "@" in host else -1
        if done <= at <= end:
            done = end + 1
            if any(mark in text[at:end] for mark in "?&#"):
                done = (text + "&").index("&", done)
            yield at, done


def _option(found: re.Match[str]) -> str:
    name, equals, value = found[0].partition("=")
    if _HARMLESS.match(found[0]) or value.startswith(_HIDDEN):
        return found[0]
    return f"{name}={_HIDDEN}" if equals and _NAME.fullmatch(name) else _HIDDEN


def without_secrets(text: str, address: str) -> str:
    """A text that somebody else wrote about an address, with *** in place of what the address hides."""
    hidden = [address[start : stop - 1] for start, stop in _users(address)]
    hidden += [found[0].removeprefix(_option(found).removesuffix(_HIDDEN)) for found in _OPTION.finditer(address)]
    parts = {part for each in hidden for form in (each, unquote(each)) for part in (form, *_BREAKS.split(form))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _LEAST:
            text = text.replace(part, _HIDDEN)
    return masked(text)
