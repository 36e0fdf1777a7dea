#!/usr/bin/env bash
# Installs what every server of the hub needs into a new virtual environment: the wheel with its
# grading extra, JupyterHub, the culler of idle servers, and the settings in deploy/jupyter/.
#
#   deploy/install.sh WHEEL FOLDER          FOLDER becomes the environment; see make wheel
#
#   PYTHON=python3.12       the Python of the environment
#   TORCH_INDEX=<address>   where to get PyTorch from, as its install selector shows it
#
# The Dockerfile runs this script. The image itself was never built, since no container can be
# built on the machines where dtlab is developed; there, this script runs without a container, and
# the trial (deploy/trial.py) uses the resulting environment.
set -euo pipefail

wheel=$(realpath "${1:?usage: deploy/install.sh WHEEL FOLDER}")
folder=${2:?usage: deploy/install.sh WHEEL FOLDER}
settings=$(dirname "$(realpath "$0")")/jupyter

"${PYTHON:-python3}" -m venv "$folder"
# PyTorch comes first and alone: then the other packages do not request the CUDA build.
"$folder/bin/pip" install -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.13,<2.14"
"$folder/bin/pip" install -q "$wheel[grading]" "jupyterhub>=6.1,<7" "jupyterhub-idle-culler>=2"

# Jupyter reads these files for every user of the environment.
mkdir -p "$folder/etc/jupyter"
cp "$settings"/*.py "$folder/etc/jupyter"
cp -r "$("$folder/bin/python" -c 'import dtlab.cli as cli; print(*cli.__path__)')/labconfig" "$folder/etc/jupyter"
