"""A client in a process of its own: asks once, and prints each thing that comes with the time of its coming.

Arguments: host:port and the request's id; the JSON body of a completion comes on standard input. Prints JSON lines of [time.monotonic(), kind, value]: first
"status", then "data" for each server-sent event or the one body, at last "end" or "broken".
"""

from __future__ import annotations

import http.client
import json
import sys
import time

PATIENCE_S = 90.0
"""Longer than anybody's deadline: who gives up here has met a hang."""


def say(kind: str, value: object) -> None:
    print(json.dumps([time.monotonic(), kind, value]), flush=True)


def main() -> None:
    address, request_id = sys.argv[1:]
    body = sys.stdin.read()
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    say("asked", "")
    try:
        headers = {"content-type": "application/json", "x-request-id": request_id}
        connection.request("POST", "/v1/completions", body, headers)
        response = connection.getresponse()
        say("status", response.status)
        if response.headers.get_content_type() == "text/event-stream":
            for line in response:
                if line.startswith(b"data: "):
                    say("data", line[6:].decode().strip())
        else:
            say("data", response.read().decode())
        say("end", "")
    except (OSError, http.client.HTTPException) as error:
        say("broken", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
