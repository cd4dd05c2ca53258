"""`python -m pagemesh.benchmark_latency …` is `pagemesh bench latency …`."""

from __future__ import annotations

import sys

from pagemesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "latency", *sys.argv[1:]]))
