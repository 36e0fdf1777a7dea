"""The hub in deploy/: its settings, and a trial with an instructor and three learners.

The trial needs two commands on PATH: `jupyterhub`, from the environment that deploy/install.sh
makes, and `configurable-http-proxy`. docs/instructors.md, On JupyterHub, says how to install them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config, PyFileConfigLoader

from tests.browser.lab import CHROMIUM

DEPLOY = Path(__file__).parent.parent / "deploy"
PASSWORDS = {
    "DTLAB_TRIAL_PASSWORD": "a" * 8,
    "DTLAB_TRIAL_INSTRUCTOR_PASSWORD": "b" * 32,
}
JUPYTERHUB = shutil.which("jupyterhub")
PROXY = shutil.which("configurable-http-proxy")


def settings(file: Path) -> Config:
    return PyFileConfigLoader(file.name, path=str(file.parent)).load_config()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name, value in {**PASSWORDS, "DTLAB_HUB": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return settings(DEPLOY / "jupyterhub_config.py")


def server_of(hub: Config, name: str) -> dict[str, str]:
    """The variables of a user's server."""
    users = hub.JupyterHub.load_groups
    groups = [SimpleNamespace(name=group) for group in users if name in users[group]["users"]]
    user = SimpleNamespace(name=name, groups=groups)
    spawner = SimpleNamespace(user=user, environment=dict(hub.Spawner.environment))
    hub.Spawner.pre_spawn_hook(spawner)
    return spawner.environment


@pytest.mark.parametrize("absent", PASSWORDS)
def test_the_hub_does_not_start_without_passwords_for_the_trial(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTLAB_HUB", str(tmp_path))
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(absent)
    with pytest.raises(SystemExit, match=f"'{absent}' is not set.*another authenticator"):
        settings(DEPLOY / "jupyterhub_config.py")


def test_the_hub_listens_on_this_machine_and_limits_each_user(hub: Config) -> None:
    assert hub.JupyterHub.bind_url.startswith("http://127.0.0.1:")
    assert (hub.Spawner.mem_limit, hub.Spawner.cpu_limit) == ("6G", 2)
    assert hub.Authenticator.allowed_users == {"instructor", "ada", "ben", "cleo"}
    assert hub.Authenticator.admin_users == {"instructor"}


@pytest.mark.parametrize(("name", "student"), [("ada", "ada"), ("instructor", "*")])
def test_nbgrader_learns_from_the_hub_who_submits_what_and_where(
    hub: Config, name: str, student: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbgrader.coursedir import CourseDirectory

    for variable, value in server_of(hub, name).items():
        monkeypatch.setenv(variable, value)
    config: Any = settings(DEPLOY / "jupyter" / "nbgrader_config.py")
    directory = CourseDirectory(config=config)
    assert (directory.course_id, directory.student_id) == ("dtlab-101", student)
    assert config.Exchange.root == str(tmp_path / "exchange")
    assert (tmp_path / "exchange").stat().st_mode & 0o777 == 0o777


def test_nbgrader_reads_its_settings_outside_a_hub_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXCHANGE", "COURSE", "STUDENT"):
        monkeypatch.delenv(f"NBGRADER_{name}", raising=False)
    assert "root" not in settings(DEPLOY / "jupyter" / "nbgrader_config.py").Exchange


@pytest.mark.proof
@pytest.mark.browser
@pytest.mark.timeout(1800)
@pytest.mark.skipif(JUPYTERHUB is None, reason="needs JupyterHub: deploy/install.sh")
@pytest.mark.skipif(PROXY is None, reason="needs npm install configurable-http-proxy")
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")
def test_an_instructor_and_three_learners_use_the_hub_at_the_same_time() -> None:
    from deploy.trial import trial

    assert JUPYTERHUB is not None and PROXY is not None
    points = trial(Path(JUPYTERHUB).parents[1], Path(PROXY))
    assert points == {"ada": (32, 32), "ben": (18, 32), "cleo": (0, 32)}
