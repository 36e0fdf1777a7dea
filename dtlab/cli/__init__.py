"""The command `dtlab`: for learners, for their machine, for instructors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dtlab.cli import instructors, learners, machine
from dtlab.errors import DtlabError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0, 1 where it could not be done, 2 where it was not understood."""
    # With this package, jsonschema builds 38 grammars for international addresses when nbformat
    # imports it, which takes a second. Notebooks have no such addresses.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    if unknown:
        told = f"{' '.join(unknown)!r} is more than it takes. See: dtlab {options.command} --help"
        print(f"dtlab {options.command}: {told}", file=sys.stderr)
        return 2
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        print(f"dtlab {options.command}: stopped.", file=sys.stderr)
        return 1
    except DtlabError as error:
        print(f"dtlab {options.command}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"dtlab {options.command}: {error.strerror}{where}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dtlab", description="Learn distributed training by running it."
    )
    commands = parser.add_subparsers(dest="command", metavar="command")

    for audience in (learners, machine, instructors):
        audience.add(commands)
    return parser
