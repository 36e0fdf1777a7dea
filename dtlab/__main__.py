"""Run the `dtlab` command for `python -m dtlab`."""

import sys

from dtlab.cli import main

sys.exit(main())
