"""Runs the Python blocks of one document, one after the other in the same namespace.

Reads one JSON object with `code` per line, answers each with what was printed, and the traceback if there is one.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback


def main() -> None:
    """Until the input ends."""
    answers = sys.stdout
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        printed, failure = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(json.loads(line)["code"], "<document>", "exec"), namespace)
            except Exception:
                failure = traceback.format_exc()
        print(
            json.dumps({"printed": printed.getvalue(), "failure": failure}),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
