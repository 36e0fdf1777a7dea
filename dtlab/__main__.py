"""`python -m dtlab` is the command `dtlab`."""

import sys

from dtlab.cli import main

sys.exit(main())
