"""`python -m pagemesh.cli` is the `pagemesh` command."""

import sys

from pagemesh.cli.main import main

sys.exit(main())
