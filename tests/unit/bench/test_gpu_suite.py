"""The suite for a rented GPU: its slices, resuming, and deadlines."""

from __future__ import annotations

import ast
import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.unit.bench.tiny_suite import DEAF, FAIL, HANG, LEAVE, Suite
from tools.gpu_suite.record import FILE, ROOT, read, tree_digest
from tools.gpu_suite.running import Outcome
from tools.gpu_suite.slices import FIGURES, MODEL, MODELS, Slice, all_slices
from tools.gpu_suite.surroundings import environment

SLICES = all_slices()
COMMANDS = [command for part in SLICES for command in part.commands]


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or nobody has asked yet how."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(") ")[2].startswith("Z")


def wait_for_end(path: Path) -> None:
    """Of the process that a command started: who was killed may end a moment later."""
    process_id = int(path.read_text())
    asyncio.run(wait_until(lambda: is_gone(process_id), "the command's own process is gone"))


def test_a_slice_fits_a_call_and_all_of_them_40_minutes() -> None:
    assert [part.number for part in SLICES] == list(range(1, len(SLICES) + 1))
    for part in SLICES:
        assert 60 < part.seconds < 9 * 60, part.name
    assert sum(part.seconds for part in SLICES) <= 40 * 60


def test_the_help_lists_the_slices_with_their_commands() -> None:
    command = [sys.executable, "-m", "tools.gpu_suite", "--help"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = told.stdout.partition("slices:\n")[2].splitlines()
    for part, line in zip(SLICES, lines, strict=True):
        assert line.split()[:4] == [str(part.number), part.name, f"{part.seconds:.0f}", "s"]
        assert line.endswith(", ".join(each.name for each in part.commands))


@pytest.mark.parametrize("slices", [SLICES, all_slices(toy=True)], ids=["real", "toy"])
def test_no_two_commands_write_the_same_file(slices: tuple[Slice, ...]) -> None:
    commands = [command for part in slices for command in part.commands]
    # Names of commands are also those of the table and of --only.
    assert len({command.name for command in commands}) == len(commands)
    assert len({part.folder for part in slices}) == len(slices)
    for command in commands:
        uses = sum(FIGURES in word for word in command.arguments)
        assert uses == bool(command.figures), command.name
        assert f"{command.name}{command.figures}" not in (FILE, f"{command.name}.log")


def test_the_commands_name_files_that_are_there() -> None:
    words = {word for command in COMMANDS for word in command.arguments if word.endswith(".py")}
    assert words
    assert [word for word in words if not (ROOT / word).is_file()] == []


def test_the_commands_know_what_they_are_told() -> None:
    shared = (ROOT / "benchmarks/report.py").read_text()
    for command in COMMANDS:
        script = command.arguments[0]
        if script.endswith(".py"):
            known = (ROOT / script).read_text() + shared
            options = [word for word in command.arguments if word.startswith("--")]
            assert [word for word in options if f'"{word}"' not in known] == [], command.name
    assert f'"{MODEL}": Shape(' in (ROOT / "benchmarks/random_models.py").read_text()


def test_every_test_of_a_gpu_and_every_model_is_in_a_slice() -> None:
    words = {word for command in COMMANDS for word in command.arguments}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/gpu").glob("test_*.py")}
    assert files <= words
    code = ast.parse((ROOT / "tests/gpu/test_cuda_identity.py").read_text())
    subjects = next(
        ast.literal_eval(node.value)
        for node in code.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUBJECTS"
    )
    assert len(subjects) > 5
    for name, _ in subjects:
        assert [word for word in MODELS if word.lower() in name.lower()] != [], name


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    suite = Suite(tmp_path, {"a": "", "b": FAIL, "c": ""})
    outcome = suite.run()
    assert outcome == Outcome({"a": "done", "b": "failed", "c": "done"}, [])
    assert not outcome.is_whole
    assert suite.record["b"]["said"] == "it is broken"
    assert suite.run() == Outcome({"b": "failed"}, [])
    assert suite.ran == ["a", "b", "c", "b"]
    assert "a: done before" in suite.said
    assert suite.run(again=True, only=("a",)).is_whole
    assert suite.ran[4:] == ["a"]
    # Of another tree, nothing is.
    suite.run(tree="other")
    assert suite.ran[5:] == ["a", "b", "c"]


def test_a_record_that_was_cut_off_is_none(tmp_path: Path) -> None:
    suite = Suite(tmp_path, {"a": ""})
    suite.run()
    path = tmp_path / "3-tiny" / FILE
    path.write_text(path.read_text()[:-20])
    suite.run()
    assert suite.ran == ["a", "a"]


def test_what_does_not_fit_the_time_that_is_left_waits_for_the_next_call(tmp_path: Path) -> None:
    suite = Suite(tmp_path, {"a": "time.sleep(1.2)", "b": "", "c": ""})
    outcome = suite.run(seconds=9)
    assert outcome == Outcome({"a": "done"}, ["b", "c"])
    assert not outcome.is_whole
    assert suite.run().is_whole
    assert suite.ran == ["a", "b", "c"]


def test_commands_are_stopped_at_their_deadlines_with_all_that_they_started(tmp_path: Path) -> None:
    suite = Suite(tmp_path, {"a": HANG, "b": DEAF, "c": LEAVE}, side_by_side=True)
    # Of which the last two are for an end that writes what there is.
    outcome = suite.run(deadline=6)
    assert outcome.ended == {"a": "out of time", "b": "out of time", "c": "done"}
    assert suite.record["a"]["said"] == "so far"
    assert suite.record["b"]["said"] == "it printed nothing"
    for name in "ab":
        assert 3 < float(str(suite.record[name]["seconds"])) < 15
    for name in "abc":
        wait_for_end(tmp_path / f"{name}.pid")


def test_commands_can_be_interrupted_whoever_started_the_suite(tmp_path: Path) -> None:
    """A shell has what it starts in the background ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        suite = Suite(tmp_path, {"a": HANG})
        assert suite.run(deadline=6).ended == {"a": "out of time"}
    finally:
        signal.signal(signal.SIGINT, before)
    assert suite.record["a"]["said"] == "so far"


def test_commands_of_a_stage_run_side_by_side(tmp_path: Path) -> None:
    meet = """
path = pathlib.Path(folder)
(path / f"here-{name}").touch()
while len(list(path.glob("here-*"))) < 3:
    time.sleep(0.02)
"""
    suite = Suite(tmp_path, dict.fromkeys("abc", meet), side_by_side=True)
    assert suite.run().ended == dict.fromkeys("abc", "done")
    assert suite.record.keys() == {"a", "b", "c"}


def test_who_stops_the_suite_stops_its_commands(tmp_path: Path) -> None:
    program = f"""
import signal, sys
from pathlib import Path
from tests.unit.bench.tiny_suite import HANG, Suite
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
Suite(Path({str(tmp_path)!r}), {{"a": HANG}}).run(deadline=60)
"""
    variables = environment(tmp_path, "tree", {})
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=variables)
    try:
        asyncio.run(wait_until((tmp_path / "a.pid").exists, "the command's own process"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 5
    finally:
        process.kill()
        process.wait(20)
    wait_for_end(tmp_path / "a.pid")
    assert read(tmp_path / "3-tiny" / FILE)["commands"] == {}


def test_the_digest_is_of_code_alone(tmp_path: Path) -> None:
    code = tmp_path / "src/a.py"
    code.parent.mkdir()
    code.write_text("a = 1\n")
    before = tree_digest(tmp_path)
    (tmp_path / "src/a.json").write_text("{}")
    assert tree_digest(tmp_path) == before
    code.write_text("a = 2\n")
    assert tree_digest(tmp_path) != before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([""], "name a folder for logs and figures"),
        (["{folder}", "--slice", "9"], "there is no slice 9, only 1 to 5"),
        (["{folder}", "--slice", "1", "--only", "step"], "there is no command 'step' in these"),
        (["{folder}", "--seconds", "0"], "a slice cannot take 0 s"),
        (["{file}/in"], "cannot be written: Not a directory"),
        (["/proc"], "/proc cannot be written"),
        pytest.param(["{folder}"], "torch finds no CUDA device here", marks=pytest.mark.costly),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    arguments = [word.format(folder=tmp_path / "out", file=file) for word in words]
    variables = environment(tmp_path, "tree", {"CUDA_VISIBLE_DEVICES": ""})
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu_suite", *arguments],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.costly
def test_a_probe_measures_a_played_device_and_is_not_run_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.gpu_suite", str(tmp_path), "--toy", "--slice", "2"]
    texts = [
        subprocess.run(
            [*command, "--only", "limits"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=150,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert "limits: done after" in texts[0]
    assert "limits: done before" in texts[1]
    assert json.loads((tmp_path / "2-steps/limits.json").read_text())["figures"]
    assert (tmp_path / "table.txt").read_text().startswith("figure")
