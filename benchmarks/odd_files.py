"""What becomes of odd and malformed files: `python benchmarks/odd_files.py` prints the name of each and its answer."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from odd_files import ODD
from odd_tables import answer


def main() -> None:
    for number, odd in enumerate(ODD, 1):
        with tempfile.TemporaryDirectory() as folder:
            read, said = answer(odd, Path(folder))
        print(f"{number:>3}  {odd.name}\n     {'read' if read else 'refused'}: {said}")


if __name__ == "__main__":
    main()
