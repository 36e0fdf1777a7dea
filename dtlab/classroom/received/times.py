"""Reads the time at which a submission was handed in, and never guesses one.

    "2027-02-01 19:30:00.000000 +0100"        18:30 UTC
    "Mon, 01 Feb 2027 19:30:00 +0100"         18:30 UTC
    "13/02/2027, 6:30 PM"                     18:30 UTC on 13 February: without a zone it is UTC
    "01/02/2027 18:30", "2027-02-01 18:30 IST"   ValueError: each has two meanings

A wrong time would cost a learner points for lateness, so a text with two readings is refused.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

__all__ = ["moment"]

_LONGEST = 100  # characters of a time
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG = re.compile(
    "(?:january|february|march|april|june|july|august|sept(?:ember)?|october|november|december|"
    "monday|tues(?:day)?|wednes(?:day)?|thurs?(?:day)?|friday|saturday|sunday)"
)
_WORD = "[A-Za-z]{3,9}"
_DATES = (
    r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})",
    r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)",
    r"(?P<one>\d{1,2})(?P<mark>[-/.])(?P<other>\d{1,2})(?P=mark)(?P<year>\d{4})",
    rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th)?[-. ]+(?P<name>{_WORD})\.?[-, ]+(?P<year>\d{{4}})",
    rf"(?P<name>{_WORD})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
)
_CLOCK = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
    r"(?: ?(?P<half>[AaPp])\.?[Mm]\b\.?)?"
)
_PACKED = r"(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)"  # of ISO 8601, after "T"
_ZONE = r"(?: ?\(?(?P<zone>[A-Za-z+-][\w+:/-]*)\)?(?: \([A-Za-z ]+\))?)?"
_WEEKDAY = rf"(?:(?P<weekday>{_WORD})\.?,? )?"
_BETWEEN = r"(?:[Tt]|,? at |,? )"
_FORMS = [
    *(re.compile(f"{_WEEKDAY}{date}{_BETWEEN}{_CLOCK}{_ZONE}", re.ASCII) for date in _DATES),
    *(re.compile(f"{date}[Tt]{_PACKED}{_ZONE}", re.ASCII) for date in _DATES[:2]),
    re.compile(  # as the command `date` prints it
        rf"{_WEEKDAY}(?P<name>{_WORD}) (?P<day>\d{{1,2}}) {_CLOCK} "
        r"(?:(?P<zone>[A-Za-z+-][\w+:/-]*) )?(?P<year>\d{4})",
        re.ASCII,
    ),
]
_NUMBER = re.compile(r"(?:UTC|GMT)?([+-])(\d\d?)(?::?(\d\d))?", re.ASCII)


def moment(text: str) -> datetime:
    """Returns the time in UTC that a text names, if it has exactly one meaning.

    A time without a zone is in UTC, as nbgrader reads it. Raises `ValueError` for any other text.
    """
    line = " ".join(unicodedata.normalize("NFKC", text).replace("\u2212", "-").split())
    if len(line) > _LONGEST or len(text.strip().splitlines()) != 1:
        raise ValueError("it is not one line with a time")
    found = next((match for form in _FORMS if (match := form.fullmatch(line))), None)
    if found is None:
        raise ValueError("it has no form of a time that is known here")
    part = found.groupdict()
    year, month, day = _date(part)
    fraction = int((part.get("fraction") or "0").ljust(9, "0")[:6])
    local = datetime(
        year, month, day, _hour(part), int(part["minute"]), int(part["second"] or 0), fraction
    )
    weekday = part.get("weekday")
    if weekday and _place(weekday, _DAYS) != local.weekday():
        raise ValueError(f"{day}.{month}.{year} is no {weekday}")
    return _utc(local, part["zone"])


def _date(part: dict[str, str | None]) -> tuple[int, int, int]:
    """Returns year, month and day of a match."""
    year = int(part["year"] or 0)
    if name := part.get("name"):
        return year, 1 + _place(name, _MONTHS), int(part["day"] or 0)
    if part.get("one") is None:
        return year, int(part["month"] or 0), int(part["day"] or 0)
    one, other = int(part["one"] or 0), int(part["other"] or 0)
    if one <= 12 and other <= 12 and one != other:
        raise ValueError("day and month may be either number")
    return (year, other, one) if one > 12 else (year, one, other)


def _place(word: str, names: tuple[str, ...]) -> int:
    """Returns the place of a month or a weekday, which may be shortened to three letters."""
    name = word.lower()
    if len(name) > 3 and not _LONG.fullmatch(name):
        raise ValueError(f"{word!r} is neither a month nor a day")
    return names.index(name[:3])


def _hour(part: dict[str, str | None]) -> int:
    """Returns the hour from 0 to 23; "6:30 PM" and "18:30" are the same."""
    hour, half = int(part["hour"] or 0), (part.get("half") or "").lower()
    if not half:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError("the hour of a time with AM or PM is not from 1 to 12")
    return hour % 12 + 12 * (half == "p")


def _utc(local: datetime, zone: str | None) -> datetime:
    """Converts a local time to UTC. Raises `ValueError` if the zone gives none, or two, for it."""
    if zone is None or zone.upper() in ("Z", "UTC", "GMT"):
        return local.replace(tzinfo=UTC)
    if number := _NUMBER.fullmatch(zone):
        return local.replace(tzinfo=_offset(*number.groups())).astimezone(UTC)
    zones: list[tzinfo] = [ZoneInfo(zone)] if zone in _known() else _abbreviated(local, zone)
    offsets = {
        moment.utcoffset()
        for each in zones
        for fold in (0, 1)  # an hour occurs twice, or never, when summer time begins or ends
        if (moment := local.replace(tzinfo=each, fold=fold)).tzname() == zone or zone in _known()
    }
    if len(offsets) != 1 or (offset := offsets.pop()) is None:
        raise ValueError(f"{zone} has no single meaning at that time")
    return (local - offset).replace(tzinfo=UTC)


def _offset(sign: str, hours: str, minutes: str | None) -> timezone:
    """Returns the zone of "+01", "+1", "+0100" or "+01:00"; no place is 15 hours from UTC."""
    size = timedelta(hours=int(hours), minutes=int(minutes or 0))
    if size > timedelta(hours=14) or int(minutes or 0) > 59:
        raise ValueError(f"no place is {hours}:{minutes or '00'} hours from UTC")
    return timezone(size if sign == "+" else -size)


@cache
def _known() -> frozenset[str]:
    """Names such as "Europe/Berlin". Names without a slash may also be abbreviations."""
    return frozenset(name for name in available_timezones() if "/" in name)


def _abbreviated(local: datetime, name: str) -> list[tzinfo]:
    """Returns the zones of the world that have this abbreviation at that time: "CET", "IST"."""
    zones = [ZoneInfo(zone) for zone in _known() if not zone.startswith(("Etc/", "right/"))]
    return [
        zone
        for zone in zones
        if name in {local.replace(tzinfo=zone, fold=fold).tzname() for fold in (0, 1)}
    ]
