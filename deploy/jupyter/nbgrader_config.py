"""nbgrader's settings for all servers of the hub, which passes the variables below to them.

A course folder has further settings, which `dtlab release --course FOLDER` writes.
"""

import os

c = get_config()  # noqa: F821  traitlets defines it

if "NBGRADER_EXCHANGE" in os.environ:
    c.Exchange.root = os.environ["NBGRADER_EXCHANGE"]
    c.CourseDirectory.course_id = os.environ["NBGRADER_COURSE"]
# By default, nbgrader takes the name of the system's user, which the hub's users may share.
if "NBGRADER_STUDENT" in os.environ:
    c.CourseDirectory.student_id = os.environ["NBGRADER_STUDENT"]
# For the same reason, the owner of a submitted folder is not the name of its learner.
c.ExchangeCollect.check_owner = False
