"""Settings of JupyterLab for all servers of the hub, as `dtlab lab` sets them on one machine."""

import os

c = get_config()  # noqa: F821  traitlets defines it
# A login shell would replace PATH, and then find neither `dtlab` nor `nbgrader`.
c.ServerApp.terminado_settings = {"shell_command": [os.environ.get("SHELL", "/bin/sh")]}
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
