"""A client process that streams an answer and prints each piece; made to be killed.

Arguments: URL and the JSON body of a completion.
"""

from __future__ import annotations

import json
import sys

import httpx


def main() -> None:
    url, body = sys.argv[1], json.loads(sys.argv[2])
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            print(line, flush=True)


if __name__ == "__main__":
    main()
