"""python -m server.monitoring: write dashboards, rules and the guide's alerts, or check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from server.monitoring.generated_files import stale_files, write_files


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m server.monitoring", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FOLDER", help="write the files below FOLDER (deploy)")
    action.add_argument("--check", type=Path, metavar="FOLDER", help="exit with 1 if one is not what would be written")
    options = parser.parse_args(arguments)
    if options.write is not None:
        for path in write_files(options.write):
            print(f"wrote {path}")
        return 0
    stale = stale_files(options.check)
    for path in stale:
        print(f"{path} is not what the catalogue makes of it; run: python -m server.monitoring --write {options.check}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
