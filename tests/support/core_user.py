"""A process that shares cores: one command a line, answered by one number.

    python -m tests.support.core_user DESCRIPTOR PLACE PATIENCE

`play` uses cores at random until the process ends.
"""

from __future__ import annotations

import random
import sys
import time

from pagemesh.engine.shared_cores import CorePlace, SharedCores


def main() -> None:
    """Take the place, say so, and do what is asked."""
    descriptor, place, patience = sys.argv[1:]
    cores = SharedCores(CorePlace(int(descriptor), int(place)), float(patience))
    print(cores.share, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["take", number]:
                print(cores.take(int(number)), flush=True)
            case ["adjust"]:
                print(cores.adjust(), flush=True)
            case ["rest"]:
                cores.rest()
                print(0, flush=True)
            case ["borrowed"]:
                print(cores.count().borrowed_seconds, flush=True)
            case ["waited"]:
                print(cores.count().wait_seconds, flush=True)
            case ["play"]:
                print(0, flush=True)
                _play(cores)


def _play(cores: SharedCores) -> None:
    draws = random.Random()
    while True:
        match draws.choice(("take", "adjust", "adjust", "rest")):
            case "take":
                cores.take(draws.randint(1, cores.num_cores))
            case "adjust":
                cores.adjust()
            case _:
                cores.rest()
        time.sleep(draws.choice((0.0, 0.0001, 0.0005)))


if __name__ == "__main__":
    main()
