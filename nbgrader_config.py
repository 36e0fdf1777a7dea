"""nbgrader's settings: `solutions/` holds the sources, `exercises/` what learners get.

From the repository's root:

    nbgrader generate_assignment 01_ranks_and_collectives --force
    nbgrader autograde 01_ranks_and_collectives
    nbgrader generate_feedback 01_ranks_and_collectives
"""

import os
import sys
from pathlib import Path

from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import ClearSolutions

from dtlab.grading import plugins

# nbgrader runs `alembic` as a command, and finds it only where the environment's bin is on PATH.
_commands = str(Path(sys.executable).parent)
if _commands not in os.environ.get("PATH", "").split(os.pathsep):
    os.environ["PATH"] = os.pathsep.join([_commands, os.environ.get("PATH", os.defpath)])

c = get_config()  # noqa: F821  traitlets puts it here

c.CourseDirectory.course_id = "dtlab"
c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.submitted_directory = "submitted"
c.CourseDirectory.autograded_directory = "autograded"
c.CourseDirectory.feedback_directory = "feedback"
# What `nbgrader generate_solution` and instantiated tests write must not look like a source.
c.CourseDirectory.solution_directory = "build/solved"
c.CourseDirectory.source_with_tests_directory = "build/instantiated"

# Ours leaves the form of an answer standing, and clears away what is filled in below it.
c.GenerateAssignment.preprocessors = [
    plugins.ClearSolutions if step is ClearSolutions else step
    for step in GenerateAssignment.preprocessors.default()
]

# The first launch in a kernel loads torch; a part's check then takes seconds, hanging or not.
c.Execute.timeout = 120
