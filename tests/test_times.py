"""The time of a submission is read rightly or not at all."""

from __future__ import annotations

import codecs
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nbgrader import coursedir
from traitlets.config import Config

from dtlab.classroom.received.times import moment
from dtlab.classroom.settings import configure
from dtlab.classroom.submissions import _handed_at
from tests.a_class import keep_path


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2027-02-01 18:30:00.000000 UTC", "18:30"),  # as nbgrader writes it
        ("2027-02-01 18:30:00", "18:30"),  # as nbgrader reads it
        ("2027-02-01 19:30:00.000000 +0100", "18:30"),
        ("2027-02-01 20:30:00.000000 +03", "17:30"),
        ("2027-02-01 13:00:00 -05:30", "18:30"),
        ("2027-02-01T19:30:00.123456789+01:00", "18:30"),
        ("20270201T183000Z", "18:30"),
        ("2027-02-01 19:30 UTC+1", "18:30"),
        ("2027-02-01 6:30 PM", "18:30"),
        ("2027-02-01 06:30:00 p.m. -0000", "18:30"),
        ("2027-02-01 12:30 AM", "00:30"),
        ("2027-02-01 12:30\u202fPM", "12:30"),  # a narrow space, as some locales have it
        ("2027-02-01 19:30:00 CET", "18:30"),
        ("2027-02-01 03:30:00 JST", "18:30 31"),
        ("2027-02-01 13:30:00 EST", "18:30"),
        ("2027-02-01 19:30:00 Europe/Berlin", "18:30"),
        ("2027-02-01 12:30:00 America/Chicago", "18:30"),
        ("Mon, 01 Feb 2027 19:30:00 +0100", "18:30"),
        ("Mon Feb  1 18:30:00 UTC 2027", "18:30"),
        ("Monday, February 1, 2027 at 6:30 PM", "18:30"),
        ("1. February 2027, 18:30", "18:30"),
        ("13/02/2027 18:30", "18:30 13"),
        ("02/13/2027 18:30", "18:30 13"),
        ("02.02.2027 18:30", "18:30 2"),
    ],
)
def test_a_time_with_one_meaning_is_read(text: str, utc: str) -> None:
    clock, _, day = utc.partition(" ")
    read = moment(text)
    assert read.tzinfo is UTC
    assert f"{read:%H:%M} {read.day}" == f"{clock} {day or 1}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("01/02/2027 18:30", "day and month may be either number"),
        ("01.02.2027 18:30 +0100", "day and month may be either number"),
        ("1-2-2027 18:30", "day and month may be either number"),
        ("2027-02-01 18:30 IST", "IST has no single meaning"),  # of India, Ireland or Israel
        ("2027-02-01 18:30 CST", "CST has no single meaning"),  # of China or Chicago
        ("2027-02-01 18:30 CEST", "CEST has no single meaning"),  # there is none in winter
        ("2027-02-01 18:30 Mars/Base", "Mars/Base has no single meaning"),
        ("2027-10-31 02:30 Europe/Berlin", "no single meaning"),  # this hour occurs twice
        ("2027-03-28 02:30 Europe/Berlin", "no single meaning"),  # and this one never
        ("2027-02-01 18:30 +2500", "no place is 25:00 hours from UTC"),
        ("2027-02-01 18:30 3600", "no form of a time"),
        ("2027-02-01 18:30 PM", "AM or PM is not from 1 to 12"),
        ("Tue, 01 Feb 2027 18:30:00 UTC", "1.2.2027 is no Tue"),
        ("1801506600", "no form of a time"),
        ("2027-02-01", "no form of a time"),
        ("27-02-01 18:30", "no form of a time"),
        ("2027-02-30 18:30 UTC", "day"),
        ("2027-02-01 18:30\n2027-02-01 19:30", "not one line"),
    ],
)
def test_a_text_that_may_mean_two_times_or_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        moment(text)


def test_an_unreadable_time_gives_a_note_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "timestamp.txt"
    for data in (b"01/02/2027 18:30", b"\xff\xff", b"0001-01-01 00:00 +0100", b"x" * 5000):
        path.write_bytes(data)
        handed_at, note = _handed_at(path)
        assert handed_at is None
        assert note.startswith("timestamp.txt has no readable time")
        assert "counts as not late" in note
    path.write_bytes(b"01/02/2027 18:30")
    assert ": day and month may be either number. So" in _handed_at(path)[1]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_time_is_read_in_the_encodings_of_editors(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "timestamp.txt"
    path.write_bytes("2027-02-01 19:30:00 +0100\r\n".encode(encoding))
    assert encoding != "utf-16" or path.read_bytes()[:2] == codecs.BOM_UTF16
    assert _handed_at(path) == (datetime(2027, 2, 1, 18, 30, tzinfo=UTC), "")


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2027-02-01 19:30:00 +0100", 18), ("2027-02-01 6:30 PM", 18), ("01/02/2027 18:30", None)],
)
def test_nbgraders_own_commands_read_times_as_dtlab_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, hour: int | None
) -> None:
    monkeypatch.setattr(coursedir, "parse_utc", coursedir.parse_utc)
    keep_path(monkeypatch)
    configure(Config(), tmp_path)
    (tmp_path / "timestamp.txt").write_text(text)
    read = coursedir.CourseDirectory().get_existing_timestamp(str(tmp_path))
    assert (read.hour if read else None) == hour
