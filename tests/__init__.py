import sys

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # see dtlab.cli
