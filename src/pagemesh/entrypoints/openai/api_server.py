"""`python -m pagemesh.entrypoints.openai.api_server --model MODEL …` is `pagemesh serve --model MODEL …`."""

from __future__ import annotations

import sys

from pagemesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
