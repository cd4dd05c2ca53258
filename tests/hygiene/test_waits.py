"""No wait without a deadline: each has one, or stands in a list with the reason why it ends all the same."""

from __future__ import annotations

import ast
import tomllib
from typing import NamedTuple

import pytest

from tests.hygiene.tree import ROOT, name_of, sources, syntax
from tests.hygiene.waits import Known, Wait, waits

FOLDERS = ("src", "services", "gateway")


class Listed(NamedTuple):
    symbol: str
    call: str


def found_waits() -> list[Wait]:
    trees = {
        name_of(path): syntax(path)
        for path in sources()
        if path.relative_to(ROOT).parts[0] in FOLDERS
    }
    known = Known.of(trees.values())
    return [wait for file, tree in trees.items() for wait in waits(file, tree, known)]


def listed_waits() -> tuple[list[Listed], int]:
    """The entries, and how many there may be."""
    text = (ROOT / "tests/hygiene/waits.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    entries = content.get("wait", [])
    assert all(entry["reason"] for entry in entries)
    return [Listed(entry["symbol"], entry["call"]) for entry in entries], content["number"]


def complaints(found: list[Wait], listed: list[Listed], number: int) -> list[str]:
    """Waits that are not listed, and what is wrong with the list."""
    known = {Listed(wait.symbol, wait.call) for wait in found}
    texts = [
        f"{wait} may wait for ever: give it a deadline"
        for wait in found
        if Listed(wait.symbol, wait.call) not in listed
    ]
    texts += [
        f"{' '.join(entry)} is listed, but is no such wait any more"
        for entry in listed
        if entry not in known
    ]
    texts += [
        f"{' '.join(entry)} is listed twice" for entry in set(listed) if listed.count(entry) > 1
    ]
    if len(listed) > number:
        texts.append(f"there are {len(listed)} entries, but at most {number} are allowed")
    if len(listed) < number:
        texts.append(f"there are {len(listed)} entries: lower the number from {number}")
    return texts


def test_every_wait_has_a_deadline_or_is_listed() -> None:
    assert complaints(found_waits(), *listed_waits()) == []


def found_in(code: str) -> list[str]:
    tree = ast.parse(code)
    return [wait.call for wait in waits("x.py", tree, Known.of([tree]))]


def in_coroutine(*lines: str) -> str:
    return "async def work(self):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "await queue.get()",
        "await queue.put(item)",
        "await event.wait()",
        "async with condition: await condition.wait()",
        "await self._future",
        "await asyncio.wait({task})",
        "await asyncio.wait({task}, timeout=None)",
        "await asyncio.wait_for(event.wait(), None)",
        "await asyncio.gather(one(), other())",
        "await asyncio.shield(task)",
        "await asyncio.to_thread(work_of_others)",
        "await asyncio.wrap_future(future)",
        "await call.read()",
        "await call.write(message)",
        "await stub.Lookup(request)",
        "await channel.channel_ready()",
        "await reader.readexactly(4)",
        "await process.wait()",
        "async for message in call: pass",
        "async with asyncio.timeout(None): await event.wait()",
        "async with lock: pass",
        "async with asyncio.TaskGroup() as tasks: pass",
    ],
)
def test_a_wait_is_found_in_a_coroutine(line: str) -> None:
    assert found_in(in_coroutine(line))


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.sleep(1)",
        "await asyncio.wait({task}, timeout=2)",
        "await asyncio.wait_for(event.wait(), 2)",
        "await asyncio.wait_for(event.wait(), timeout=seconds)",
        "await stub.Lookup(request, timeout=2)",
        "call = stub.Watch(request, timeout=seconds)",
        "async with asyncio.timeout(2): await event.wait()",
        "async with asyncio.timeout_at(deadline): await queue.get()",
        "async with store.answering(): await redis.get(key)",
        "await self.work()",
        "await work()",
        "async for item in self.work(): pass",
    ],
)
def test_what_ends_is_not_found(line: str) -> None:
    assert found_in(in_coroutine(line)) == []


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("thread.join()", "thread.join(5)"),
        ("jobs.get()", "jobs.get(timeout=5)"),
        ("jobs.get(True)", "jobs.get(True, 5)"),
        ("jobs.get()", "jobs.get(block=False)"),
        ("event.wait()", "event.wait(5)"),
        ("changed.wait_for(ready)", "changed.wait_for(ready, 5)"),
        ("future.result()", "future.result(5)"),
        ("lock.acquire()", "lock.acquire(timeout=5)"),
        ("lock.acquire()", "lock.acquire(blocking=False)"),
        ("process.wait()", "process.wait(timeout=5)"),
        ("process.communicate()", "process.communicate(timeout=5)"),
        ("subprocess.run(command)", "subprocess.run(command, timeout=5)"),
        ("selector.select()", "selector.select(5)"),
        ("stub.Lookup(request)", "stub.Lookup(request, 5)"),
        ("urllib.request.urlopen(url)", "urllib.request.urlopen(url, timeout=5)"),
        ("for message in call: pass", "for message in messages: pass"),
        ("connection.recv()", "connection.poll(5)"),
        ("connection.send(message)", "generator.send(message)"),
        ("fcntl.flock(descriptor, fcntl.LOCK_EX)", "text = ','.join(words)"),
        ("listener.accept()", "names.get(key)"),
    ],
)
def test_a_blocking_call_is_found_unless_it_has_a_timeout(bad: str, good: str) -> None:
    assert found_in(f"def work():\n    {bad}\n")
    assert found_in(f"def work():\n    {good}\n") == []


def test_a_deadline_does_not_reach_into_what_is_called_later() -> None:
    code = in_coroutine(
        "async with asyncio.timeout(2):",
        "    async def later():",
        "        await event.wait()",
        "    await queue.get()",
    )
    assert found_in(code) == ["event.wait"]


def test_a_wait_behind_a_deadline_is_found() -> None:
    code = in_coroutine("async with asyncio.timeout(2):", "    pass", "await queue.get()")
    assert found_in(code) == ["queue.get"]


def test_a_method_of_another_object_is_not_taken_for_ours() -> None:
    code = (
        "class A:\n    async def get(self):\n        await self.get()\n        await other.get()\n"
    )
    assert found_in(code) == ["other.get"]


def test_the_list_must_be_as_long_as_it_says_and_without_what_is_gone() -> None:
    wait = Wait("src/pagemesh/a.py", "f", "queue.get", 3)
    entry = Listed("pagemesh.a:f", "queue.get")
    assert complaints([wait], [entry], 1) == []
    assert complaints([wait], [], 0) == [
        "src/pagemesh/a.py:3: f: queue.get may wait for ever: give it a deadline"
    ]
    assert complaints([], [entry], 1) == [
        "pagemesh.a:f queue.get is listed, but is no such wait any more"
    ]
    assert complaints([wait], [entry], 2) == ["there are 1 entries: lower the number from 2"]
    assert complaints([wait], [entry], 0) == ["there are 1 entries, but at most 0 are allowed"]


@pytest.mark.parametrize(
    ("file", "function", "symbol"),
    [
        (
            "services/decode/pagemesh/decode/messages.py",
            "OutputBuffer.take",
            "pagemesh.decode.messages:OutputBuffer.take",
        ),
        ("src/pagemesh/rpc/__init__.py", "serve.wait", "pagemesh.rpc:serve.wait"),
        ("src/pagemesh/local.py", "", "pagemesh.local"),
    ],
)
def test_a_wait_is_listed_by_the_function_wherever_its_root_is(
    file: str, function: str, symbol: str
) -> None:
    assert Wait(file, function, "queue.get", 3).symbol == symbol
