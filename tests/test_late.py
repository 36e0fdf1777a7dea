"""What handing in late costs: rules, exceptions, time zones, and when they change afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import capture_log
from traitlets.config import Config

from dtlab.classroom import grade
from dtlab.classroom.late import LateRules, Rules, lateness
from dtlab.classroom.lines import summary
from dtlab.classroom.settings import CONFIG, configure
from dtlab.cli import main
from dtlab.errors import DtlabError
from dtlab.ranks.launch import client
from tests.a_class import NAME, Class, Kept, judged, keep_path

HOUR, DAY = 3600.0, 86400.0
DUE = datetime(2026, 12, 1, 17, tzinfo=UTC)


# Rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "percent"),
    [(1, 10), (DAY, 10), (DAY + 1, 20), (4.5 * DAY, 50), (5 * DAY + 1, 50), (400 * DAY, 50)],
)
def test_each_day_that_has_begun_costs(seconds: float, percent: float) -> None:
    assert Rules(percent_per_day=10, most_percent=50).percent(seconds) == percent


def test_minutes_of_grace_cost_nothing_and_then_the_first_day_counts_from_the_due_date() -> None:
    rules = Rules(percent_per_day=10, grace_minutes=15)
    assert [rules.percent(60 * minutes) for minutes in (15, 15.1)] == [0, 10]
    assert rules.percent(DAY + 60) == 20


def test_without_a_rule_nothing_is_taken_off() -> None:
    assert LateRules().rules("week-1").percent(30 * DAY) == 0


def test_never_more_than_all() -> None:
    assert Rules(percent_per_day=70, most_percent=300).percent(9 * DAY) == 100


def test_assignments_and_students_have_rules_of_their_own() -> None:
    plugin = plug_in(
        percent_per_day=10,
        assignments={"week-2": {"percent_per_day": 25, "grace_minutes": 5}},
        extensions={"week-2": {"ada": "2026-12-03 18:00 UTC", "team-*": "2026-12-02 18:00 UTC"}},
    )
    assert plugin.rules("week-1") == Rules(10, extensions={})
    rules = plugin.rules("week-2")
    assert (rules.percent_per_day, rules.grace_minutes) == (25, 5)
    assert rules.due("ada", DUE) == datetime(2026, 12, 3, 18, tzinfo=UTC)
    assert rules.due("team-7", DUE) == datetime(2026, 12, 2, 18, tzinfo=UTC)
    assert rules.due("bob", DUE) == DUE


def test_an_extension_never_shortens() -> None:
    rules = plug_in(extensions={"week-1": {"*": "2026-11-01 18:00 UTC"}}).rules("week-1")
    assert rules.due("ada", DUE) == DUE


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"percent_per_day": -1.0}, r"c\.LateRules\.percent_per_day is -1.0 for week-1"),
        (
            {"assignments": {"week-1": {"percent": 3}}},
            r"assignments\['week-1'\] is {'percent': 3}",
        ),
        ({"assignments": {"week-1": {"most_percent": "x"}}}, "most_percent is 'x' for week-1"),
        ({"extensions": {"week-1": {"ada": "soon"}}}, r"\['ada'\]: 'soon' cannot be read"),
        ({"extensions": {"week-1": "2026-12-01"}}, r"extensions\['week-1'\] is '2026-12-01'"),
    ],
)
def test_settings_that_make_no_sense_are_explained(settings: dict[str, object], told: str) -> None:
    with pytest.raises(DtlabError, match=told):
        plug_in(**settings).rules("week-1")


def plug_in(**settings: object) -> LateRules:
    return LateRules(config=Config({"LateRules": settings}))


# Times ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nbgrader runs alembic, which the settings of a course put on the path."""
    keep_path(monkeypatch)
    configure(Config(), tmp_path)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine five and a half hours ahead of the gradebook."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("handed_in", "seconds"),
    [
        ("2026-12-01 17:30:00", 1800),  # nbgrader notes times in UTC
        ("2026-12-01 17:30:00 UTC", 1800),
        ("2026-12-01 18:30:00 CET", 1800),
        ("2026-12-01 23:00:00 Asia/Kolkata", 1800),
        ("2026-12-01 16:59:59.5 UTC", 0),
    ],
)
def test_times_are_compared_wherever_they_were_noted(
    tmp_path: Path, handed_in: str, seconds: float
) -> None:
    """The due date is 22:30 on this machine, 17:00 in the gradebook."""
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        book.add_assignment(NAME, duedate="2026-12-01 22:30 Asia/Kolkata")
        book.add_student("ada")
        submission = book.add_submission(NAME, "ada", timestamp=handed_in)
        late = lateness(submission, Rules(percent_per_day=10))
        assert (late.seconds if late else 0) == seconds
        assert late is None or late.due == DUE


@pytest.mark.proof
@pytest.mark.slow
def test_an_extension_recorded_by_nbgrader_counts(tmp_path: Path) -> None:
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        book.add_assignment(NAME, duedate="2026-12-01 17:00")
        book.add_assignment("open")
        book.add_student("ada")
        submission = book.add_submission(NAME, "ada", timestamp="2026-12-02 18:00")
        book.grant_extension(NAME, "ada", days=1)
        late = lateness(submission, Rules())
        assert late is not None
        assert (late.seconds, late.due) == (HOUR, DUE + timedelta(days=1))
        forever = book.add_submission("open", "ada", timestamp="2026-12-02 18:00")
        assert lateness(forever, Rules()) is None


# A class ----------------------------------------------------------------------------------------

RULES = "c.LateRules.percent_per_day = 10; c.LateRules.grace_minutes = 15\n"


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """Judges with a warm server."""
    engine = Kept()
    yield engine
    engine.engine.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student in time, one within the minutes of grace, one a day and three hours late."""
    with pytest.MonkeyPatch.context() as patch:
        keep_path(patch)
        folder = tmp_path_factory.mktemp("made") / "course"
        group = Class(folder, parts="01/step", due="2026-12-01 18:00 Europe/Berlin")
        group.hand_in("ada", when="2026-12-01 16:59:00 UTC")
        group.hand_in("bob", when="2026-12-01 17:10:00 UTC")
        group.hand_in("cyd", when="2026-12-02 20:00:00 UTC")
    return folder


@pytest.fixture
def group(made: Path, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Class:
    """A copy of that class."""
    monkeypatch.setattr(grade, "engine_named", kept)
    kept.tasks.clear()
    return Class(Path(shutil.copytree(made, tmp_path / "course")))


def set_up(group: Class, text: str) -> Class:
    """The class with more settings."""
    with (group.folder / CONFIG).open("a") as file:
        file.write(f"c = get_config()\n{text}")
    return Class(group.folder)


def penalties(group: Class) -> dict[str, float | None]:
    with group.book() as book:
        found = book.find_assignment(NAME).submissions
        return {one.student.id: one.notebooks[0].late_submission_penalty for one in found}


@pytest.mark.proof
@pytest.mark.slow
def test_late_work_loses_points_and_each_student_is_named(
    group: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    named = "c.AssignLatePenalties.plugin_class = 'dtlab.classroom.late.LateRules'\n"
    group = set_up(group, named + RULES)
    outcomes = group.grade()
    assert penalties(group) == {"ada": None, "bob": None, "cyd": 1.2}
    told = "\n".join(summary(outcomes.values(), "verdicts", None))
    assert "bob: 10 min after 2026-12-01 17:00 UTC; within the minutes of grace" in told
    assert "cyd: 1 day 3 h after 2026-12-01 17:00 UTC; 20 % off, 1.2 points" in told
    assert "ada" not in told


@pytest.mark.proof
@pytest.mark.slow
def test_without_rules_nothing_is_taken_off_and_each_student_is_named(group: Class) -> None:
    told = "\n".join(summary(group.grade().values(), "verdicts", None))
    assert penalties(group) == {"ada": None, "bob": None, "cyd": None}
    assert "bob: 10 min after 2026-12-01" in told
    assert told.count("; nothing is taken off") == 2


@pytest.mark.proof
@pytest.mark.slow
def test_rules_and_points_that_change_afterwards_count_without_judging_again(
    group: Class, kept: Kept
) -> None:
    group.grade()
    kept.tasks.clear()
    group = set_up(group, RULES)
    assert all(outcome.skipped for outcome in group.grade().values())
    assert penalties(group)["cyd"] == 1.2
    with group.book() as book:
        book.find_grade("step-check", "01_level_1", NAME, "cyd").manual_score = 4
        book.db.commit()
    group.grade()
    assert penalties(group)["cyd"] == 0.8
    own = {NAME: {"cyd": "2026-12-02 20:00 UTC"}}
    group = set_up(group, f"c.LateRules.extensions = {own}\n")
    assert group.grade()["cyd"].late is None
    assert penalties(group)["cyd"] is None
    assert kept.tasks == []


@pytest.mark.proof
@pytest.mark.slow
def test_handed_in_again_is_late_again(group: Class, kept: Kept) -> None:
    group = set_up(group, RULES)
    group.grade()
    kept.tasks.clear()
    group.hand_in("ada", when="2026-12-01 17:30:00 UTC")
    group.grade()
    assert judged(kept.tasks) == ["ada"]
    assert penalties(group)["ada"] == 0.6


@pytest.mark.proof
@pytest.mark.slow
def test_nbgrader_autograde_takes_off_the_same(group: Class) -> None:
    group = set_up(group, RULES)
    here = CourseDirectory(config=group.directory.config)
    here.assignment_id, here.student_id = NAME, "cyd"
    try:
        done = capture_log(Autograde(coursedir=here, config=group.directory.config))
    finally:
        client.SERVER.stop()
    assert done["success"], done
    assert penalties(group) == {"cyd": 1.2}


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        "c.LateRules.penalty_method = 'zero'\n",
        "c.AssignLatePenalties.plugin_class = 'nbgrader.plugins.LateSubmissionPlugin'\n"
        "c.LateSubmissionPlugin.penalty_method = 'zero'\n",
    ],
)
def test_a_rule_of_nbgraders_own_stays(group: Class, chosen: str) -> None:
    group = set_up(group, chosen)
    group.grade()
    assert penalties(group)["cyd"] == 6


@pytest.mark.proof
@pytest.mark.slow
def test_settings_that_make_no_sense_stop_it_before_it_begins(
    group: Class, kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, told in (
        ("c.LateRules.extensions = {'week-1': {'ada': 'soon'}}\n", "'soon' cannot be read as"),
        ("c.LateRules.percent_per_day = 'ten'\n", "percent_per_day"),
    ):
        set_up(group, text)
        assert main(["grade", NAME, "--course", str(group.folder)]) == 1
        assert told in capsys.readouterr().err
    assert kept.tasks == []


@pytest.mark.slow
def test_a_time_that_cannot_be_read_takes_nothing_off(group: Class) -> None:
    """This holds even if an earlier submission was late; times of other zones are converted."""
    group = set_up(group, RULES)
    group.grade()
    assert penalties(group)["cyd"] == 1.2
    group.hand_in("cyd", when="01/02/2027 18:30")
    group.hand_in("bob", when="2026-12-01 19:30:00 +0100")  # 18:30 UTC, late
    outcome = group.grade()["cyd"]
    assert penalties(group) == {"ada": None, "bob": 0.6, "cyd": None}
    assert outcome.record is not None
    assert "day and month may be either" in outcome.record.notes["01_level_1"][0]
    stored = [group.autograded(name).with_name("timestamp.txt") for name in ("bob", "cyd")]
    assert [path.read_text() for path in stored] == ["2026-12-01 18:30:00.000000 UTC", ""]
