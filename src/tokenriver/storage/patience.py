"""How long a server asks to be left alone: the header Retry-After of what it refuses, in seconds or as a date."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

__all__ = ["seconds_asked", "seconds_asked_by"]

_LONGEST = 3600.0
"""Nobody is waited for longer than that at a time."""

_ROUNDING = 1.0
"""Dates have whole seconds, and some servers cut theirs off."""


def seconds_asked(headers: object) -> float | None:
    """Seconds to wait from now by an answer's headers, at most an hour; None where they do not say, or not readably."""
    if not isinstance(headers, Mapping):
        return None
    told = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    asked = told.get("retry-after", "")
    if asked.isdecimal() and asked.isascii():
        return min(float(asked[:9]) + _ROUNDING, _LONGEST)
    then = _time_of(asked)
    if then is None:
        return None
    now = _time_of(told.get("date", ""))  # by the server's own clock, which may be another than ours
    return min(max(0.0, then - (time.time() if now is None else now)) + _ROUNDING, _LONGEST)


def seconds_asked_by(error: BaseException | None) -> float | None:
    """The same of the answer that an error of a store's client, or what caused it, is about."""
    for _ in range(5):
        if error is None:
            return None
        for headers in _headers_of(error):
            if (asked := seconds_asked(headers)) is not None:
                return asked
        error = error.__cause__
    return None


def _headers_of(error: Any) -> list[object]:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        return [(answer.get("ResponseMetadata") or {}).get("HTTPHeaders")]
    return [getattr(error, "headers", None), getattr(answer, "headers", None)]


def _time_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
