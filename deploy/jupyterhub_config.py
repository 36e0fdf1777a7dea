"""JupyterHub for a course: its users, limits for each of them, and how their servers start.

    jupyterhub -f deploy/jupyterhub_config.py         # http://127.0.0.1:8000

As it is, the file serves a trial on one machine, and starts only with two passwords that are
chosen for each run: DTLAB_TRIAL_PASSWORD for learners (8 characters or more), and
DTLAB_TRIAL_INSTRUCTOR_PASSWORD (32 or more). For a class, replace the two blocks marked with
"Replace this". The folder DTLAB_HUB (default: hub/) holds all files of the hub.
"""

import os
import sys
from pathlib import Path

COURSE = "dtlab-101"
INSTRUCTORS = {"instructor"}
LEARNERS = {"ada", "ben", "cleo"}

FOLDER = Path(os.environ.get("DTLAB_HUB", "hub")).absolute()
EXCHANGE = FOLDER / "exchange"
COMMANDS = Path(sys.executable).parent

c = get_config()  # noqa: F821  traitlets defines it

# The hub listens on this machine only. For a class, put a web server with HTTPS in front of it.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.db_url = f"sqlite:///{FOLDER}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = str(FOLDER / "cookie_secret")
c.ConfigurableHTTPProxy.pid_file = str(FOLDER / "proxy.pid")

# Users. nbgrader uses these names of groups too.
c.Authenticator.allowed_users = INSTRUCTORS | LEARNERS
c.Authenticator.admin_users = INSTRUCTORS  # they see and stop all servers, at /hub/admin
c.JupyterHub.load_groups = {
    f"formgrade-{COURSE}": {"users": sorted(INSTRUCTORS)},
    f"nbgrader-{COURSE}": {"users": sorted(LEARNERS)},
}

# Replace this by the login of your institution, such as an OAuthenticator
# (https://oauthenticator.readthedocs.io). Here, all learners have the same password.
c.JupyterHub.authenticator_class = "shared-password"
try:
    c.SharedPasswordAuthenticator.user_password = os.environ["DTLAB_TRIAL_PASSWORD"]
    c.SharedPasswordAuthenticator.admin_password = os.environ["DTLAB_TRIAL_INSTRUCTOR_PASSWORD"]
except KeyError as error:
    sys.exit(
        f"{error} is not set. Choose passwords for a trial, as the first lines of {__file__} "
        "say. For a class, configure another authenticator in that file."
    )

# Limits for each user. The container spawner enforces memory and CPUs; the trial's does not.
c.Spawner.mem_limit = "6G"
c.Spawner.cpu_limit = 2
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
IDLE_LIMIT = 3600  # seconds without activity after which a server is stopped
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={IDLE_LIMIT}"],
    }
]
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]

# Replace this by containers. Here, each server is a process of the user who runs the hub, so
# every learner can read the files of all others, the gradebook included.
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = f"{FOLDER}/homes/{{username}}"
c.Spawner.cmd = [str(COMMANDS / "jupyterhub-singleuser")]
if os.geteuid() == 0:
    c.Spawner.args = ["--allow-root"]
c.Spawner.environment = {"PATH": f"{COMMANDS}:{os.environ.get('PATH', os.defpath)}"}
#
# c.JupyterHub.spawner_class = "docker"                # pip install dockerspawner; not tried
# c.DockerSpawner.image = "dtlab"                      # from deploy/Dockerfile
# c.DockerSpawner.network_name = "dtlab"               # docker network create dtlab
# c.JupyterHub.hub_ip = "0.0.0.0"                      # the containers must reach the hub
# c.JupyterHub.hub_connect_ip = "hub"                  # the hub's name in that network
# c.DockerSpawner.remove = True
# c.DockerSpawner.volumes = {f"{FOLDER}/homes/{{username}}": "/home/jovyan",
#                            str(EXCHANGE): str(EXCHANGE)}
# c.DockerSpawner.extra_host_config = {"shm_size": "1g"}


def prepare(spawner):
    """Pass nbgrader's settings to a server; see deploy/jupyter/nbgrader_config.py."""
    settings = {"NBGRADER_EXCHANGE": str(EXCHANGE), "NBGRADER_COURSE": COURSE}
    if f"formgrade-{COURSE}" not in {group.name for group in spawner.user.groups}:
        settings["NBGRADER_STUDENT"] = spawner.user.name
        # In containers, give each learner another user id. Otherwise learners can list and read
        # all submissions in the exchange. Instructors keep the user of the image.
        #
        # number = 20_000 + spawner.user.id
        # home = FOLDER / "homes" / spawner.user.name
        # home.mkdir(parents=True, exist_ok=True)
        # os.chown(home, number, number)
        # spawner.extra_create_kwargs = {"user": f"{number}:{number}"}
    spawner.environment = {**spawner.environment, **settings}


c.Spawner.pre_spawn_hook = prepare

EXCHANGE.mkdir(parents=True, exist_ok=True)
EXCHANGE.chmod(0o777)  # all users hand in here; nbgrader restricts the folders in it
