"""Answers in whole are compressed, streams never wait for it; requests may be compressed."""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.gateway.conftest import MAX_BODY_MIB, Gateway

JSON = {"content-type": "application/json"}
GZIP = {"accept-encoding": "gzip"}


def chat(gateway: Gateway, model: str, **headers: str) -> httpx.Response:
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json={"model": model}, headers=headers)


@pytest.mark.parametrize("size", [2000, 300_000])
def test_long_answers_are_compressed_for_those_who_ask(gateway: Gateway, size: int) -> None:
    compressed = chat(gateway, f"pad:{size}", **GZIP)
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.json() == {"pad": "a" * size}
    assert compressed.num_bytes_downloaded < size / 10
    plain = chat(gateway, f"pad:{size}", **{"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == {"pad": "a" * size}


def test_short_answers_of_the_gateway_are_not(gateway: Gateway) -> None:
    refused = httpx.get(f"{gateway.url}/unknown", headers=GZIP)
    assert "content-encoding" not in refused.headers
    assert int(refused.headers["content-length"]) < 1024


def test_events_come_one_by_one_to_those_who_would_take_gzip(gateway: Gateway) -> None:
    stand_in = gateway.router.openai
    stand_in.next_token.release()
    body = {"model": "paced:gzip"}
    url = f"{gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=GZIP, timeout=10) as response:
        assert "content-encoding" not in response.headers
        # Each is sent only after the one before has arrived: a buffer anywhere would hang here.
        events = (line for line in response.iter_lines() if line)
        for index, line in zip(range(5), events, strict=False):
            chunk = json.loads(line.removeprefix("data: "))
            assert chunk["choices"][0]["delta"]["content"] == str(index)
            stand_in.next_token.release()
    assert stand_in.ended.get(timeout=5) == "gzip"


def send(gateway: Gateway, body: bytes, encoding: str) -> httpx.Response:
    url = f"{gateway.url}/v1/chat/completions"
    headers = {**JSON, "content-encoding": encoding}
    return httpx.post(url, content=body, headers=headers, timeout=20)


def test_a_compressed_request_reaches_the_router_as_it_was(gateway: Gateway) -> None:
    body = json.dumps({"model": "size", "pad": "some words " * 50_000}).encode()
    assert send(gateway, gzip.compress(body), "gzip").json() == {"num_bytes": len(body)}
    assert send(gateway, body, "identity").json() == {"num_bytes": len(body)}


def test_nothing_arrives_of_a_body_that_is_no_gzip(gateway: Gateway) -> None:
    assert send(gateway, b'{"model": "size"}', "gzip").json() == {"num_bytes": 0}


def bomb(num_mib: int) -> bytes:
    """JSON that becomes so large, made of one piece that stands in it again and again."""
    head, piece = b'{"model": "size", "pad": "', b"a" * 2**20
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    first = compressor.compress(head) + compressor.flush(zlib.Z_FULL_FLUSH)
    again = compressor.compress(piece) + compressor.flush(zlib.Z_FULL_FLUSH)
    checksum = zlib.crc32(head)
    for _ in range(num_mib):
        checksum = zlib.crc32(piece, checksum)
    size = len(head) + num_mib * len(piece)
    end = compressor.flush() + struct.pack("<II", checksum, size % 2**32)
    return gzip.compress(b"")[:10] + first + num_mib * again + end


def test_a_bomb_is_what_it_says() -> None:
    assert gzip.decompress(bomb(3)) == b'{"model": "size", "pad": "' + 3 * 2**20 * b"a"


@pytest.mark.parametrize("num_mib", [3, 200])
def test_what_is_too_large_decompressed_is_refused(gateway: Gateway, num_mib: int) -> None:
    compressed = bomb(num_mib)
    assert len(compressed) < MAX_BODY_MIB * 2**20 / 4
    refused = send(gateway, compressed, "gzip")
    assert refused.status_code == 413
    assert refused.json()["error"]["code"] == "request_too_large"
    # And the gateway is well.
    assert chat(gateway, "size").status_code == 200


def test_bombs_do_not_fill_the_memory(own_gateway: Gateway) -> None:
    compressed = bomb(1024)
    (envoy,) = psutil.Process(own_gateway.process.pid).children()
    assert envoy.name() == "envoy"
    status = Path(f"/proc/{envoy.pid}/status")
    before = peak_memory(status)
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda _: send(own_gateway, compressed, "gzip"), range(4)))
    assert [answer.status_code for answer in answers] == [413] * 4
    # A tenth of what the four would take together.
    assert peak_memory(status) - before < 4 * 2**30 / 10


def peak_memory(status: Path) -> int:
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())
    return 1024 * int(peak)


def test_other_encodings_are_refused_by_name(gateway: Gateway) -> None:
    refused = send(gateway, b"x", "br")
    assert refused.status_code == 415
    assert refused.json()["error"] == {
        "message": "The request's body is encoded as br; only gzip is understood.",
        "type": "invalid_request_error",
        "param": None,
        "code": "unsupported_content_encoding",
    }
