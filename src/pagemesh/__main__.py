"""`python -m pagemesh COMMAND …` is `pagemesh COMMAND …`."""

from __future__ import annotations

import sys

from pagemesh.cli.main import main

sys.exit(main())
