"""A slice of the suite for a rented GPU whose commands are tiny programs."""

from __future__ import annotations

from pathlib import Path

from tools.gpu_suite.record import FILE, read
from tools.gpu_suite.running import Outcome, Setup, run_slice
from tools.gpu_suite.slices import Command, Slice
from tools.gpu_suite.surroundings import environment

# Writes its name into a file, then does what its last argument says.
TINY = """
import pathlib, subprocess, sys, time
name, folder, then = sys.argv[1:]
with (pathlib.Path(folder) / "ran").open("a") as file:
    file.write(name + "\\n")
exec(then)
"""
FAIL = "sys.exit('it is broken')"
LEAVE = """
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
draft = pathlib.Path(folder) / f"{name}.draft"
draft.write_text(f"{other.pid}")
draft.rename(draft.with_name(f"{name}.pid"))
"""
HANG = f"""
{LEAVE}
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("so far")
    sys.exit(1)
"""
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + HANG


class Suite:
    """A slice of tiny commands in a folder."""

    def __init__(self, folder: Path, stages: dict[str, str], side_by_side: bool = False) -> None:
        self.folder = folder
        commands = [
            Command(name, 10, ("-c", TINY, name, str(folder), then))
            for name, then in stages.items()
        ]
        self.said: list[str] = []
        self.part = Slice(
            3, "tiny", (tuple(commands),) if side_by_side else tuple((each,) for each in commands)
        )

    def run(
        self,
        *,
        tree: str = "tree",
        seconds: float | None = None,
        deadline: float = 10,
        again: bool = False,
        only: tuple[str, ...] = (),
    ) -> Outcome:
        stages = tuple(
            tuple(each._replace(seconds=deadline) for each in stage) for stage in self.part.stages
        )
        setup = Setup(self.folder, environment(self.folder, tree, {}), tree, self.said.append, 2)
        part = self.part._replace(stages=stages)
        return run_slice(part, setup, seconds=seconds, again=again, only=only)

    @property
    def ran(self) -> list[str]:
        return (self.folder / "ran").read_text().split()

    @property
    def record(self) -> dict[str, dict[str, object]]:
        commands: dict[str, dict[str, object]] = read(self.folder / "3-tiny" / FILE)["commands"]
        return commands
