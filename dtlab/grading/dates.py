"""Dates that instructors write."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from dtlab.errors import DtlabError

__all__ = ["due_date"]

_DUE = (
    'Write the due date as "2026-12-01 18:00", or with its zone, "2026-12-01 18:00 Europe/Berlin".'
)


def due_date(text: str) -> datetime:
    """The moment that an instructor means; without a zone it is that of this machine.

    Raises `DtlabError` that says how to write it.
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?)\s*(\S*)", text.strip())
    try:
        if found is None:
            raise ValueError(text)
        moment, zone = datetime.fromisoformat(found[1]), found[2]
        if not zone:
            return moment.astimezone()
        if zone in ("Z", "UTC") or zone[0] in "+-":
            return datetime.fromisoformat(f"{found[1]}{zone.replace('UTC', 'Z')}")
        return moment.replace(tzinfo=ZoneInfo(zone))
    except (ValueError, KeyError, OSError) as error:  # no zone of that name is a KeyError
        raise DtlabError(f"{text!r} is no due date that can be read. {_DUE}") from error
