"""The fuzzer of the tests, for as many cases as there is time for: how cases of each kind ended, and every fault.

python benchmarks/fuzz.py --cases 10000 --seed 1
python benchmarks/fuzz.py --only csv:17 --folder runs/fuzz
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fuzz import Outcome, attempt
from fuzz_accepted import World
from fuzz_kinds import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=600, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--only", help="one case, kind:number; its files stay in the folder")
    parser.add_argument("--folder", type=Path, default=Path("runs/fuzz"))
    given = parser.parse_args()
    folder, kinds = given.folder.resolve(), given.kinds.split(",")
    shutil.rmtree(folder, ignore_errors=True)
    world, faults = World(folder / "accepted"), list[Outcome]()
    if given.only:
        kind, _, number = given.only.partition(":")
        print(attempt(world, kind, int(number), folder / "case", given.seed))
        return
    print(f"{'kind':14s} cases seconds  how they ended")
    for kind in kinds:
        began, ends = time.perf_counter(), Counter[str]()
        for number in range(given.first, given.first + given.cases // len(kinds)):
            found = attempt(world, kind, number, folder / "case", given.seed)
            shutil.rmtree(folder / "case", ignore_errors=True)
            ends[found.end] += 1
            if found.fault:
                faults.append(found)
                print(f"FAULT {found.name} (seed {given.seed}): {found.fault}\n", flush=True)
        told = ", ".join(f"{count} {end}" for end, count in ends.most_common())
        print(f"{kind:14s} {ends.total():5d} {time.perf_counter() - began:7.1f}  {told}", flush=True)
    print(f"{len(faults)} faults: {' '.join(found.name for found in faults)}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
