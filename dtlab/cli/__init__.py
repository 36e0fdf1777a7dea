"""The command `dtlab`, with subcommands for learners, machines, traces and instructors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dtlab.cli import analyze, instructors, learners, machine
from dtlab.errors import DtlabError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 if it succeeds, 1 if it fails, 2 if its arguments are wrong."""
    # If rfc3987_syntax is installed, jsonschema builds 38 grammars for international addresses
    # when nbformat imports it. This takes a second, and notebooks have no such addresses.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    if hasattr(options, "others"):  # a command that passes them on
        options.others = unknown
    elif unknown:
        message = f"unexpected {' '.join(unknown)!r}. See: dtlab {options.command} --help"
        print(f"dtlab {options.command}: {message}", file=sys.stderr)
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

    for audience in (learners, machine, analyze, instructors):
        audience.add(commands)
    return parser
