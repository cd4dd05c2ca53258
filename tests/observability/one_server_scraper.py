"""Stands for the scripts that people wrote for one vLLM server, and run as they are: three gauges out of /metrics.

one_server_scraper.py beginning|anywhere URL

They know names of then and read line by line. Some look for a name at the beginning of a line, some anywhere in it;
all keep the last line that they find.
"""

from __future__ import annotations

import sys
import urllib.request

GAUGES = {
    "kv": "vllm:gpu_cache_usage_perc",
    "queue": "vllm:num_requests_waiting",
    "hits": "vllm:cpu_prefix_cache_hit_rate",
}


def main(by: str, url: str) -> int:
    """Print the gauges; 1 when one of them is not there."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line[:1] != "#"]
    found = {}
    for key, name in GAUGES.items():
        word = name.partition(":")[2]
        for line in lines:
            if word in line if by == "anywhere" else line.split("{")[0].split(" ")[0] == name:
                found[key] = float(line.split()[-1])
    if found.keys() != GAUGES.keys():
        return 1
    print(f"kv={100 * found['kv']:.1f} queue={found['queue']:.0f} hits={found['hits']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
