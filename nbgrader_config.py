"""nbgrader's settings: `solutions/` holds the sources, `exercises/` what learners get.

From the repository's root:

    nbgrader generate_assignment 01_ranks_and_collectives --force
    nbgrader autograde 01_ranks_and_collectives
    nbgrader generate_feedback 01_ranks_and_collectives

A course of your own lives in a folder of its own: `dtlab release 01 --course FOLDER` makes it.
"""

from pathlib import Path

from dtlab.classroom.settings import configure

c = get_config()  # noqa: F821  traitlets puts it here
configure(c, Path(__file__).parent, course_id="dtlab")

c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.Stamp.enabled = False  # exercises/ is kept in git, and does not change with every version
# What `nbgrader generate_solution` and instantiated tests write must not look like a source.
c.CourseDirectory.solution_directory = "build/solved"
c.CourseDirectory.source_with_tests_directory = "build/instantiated"
