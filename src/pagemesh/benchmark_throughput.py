"""`python -m pagemesh.benchmark_throughput …` is `pagemesh bench throughput …`."""

from __future__ import annotations

import sys

from pagemesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "throughput", *sys.argv[1:]]))
