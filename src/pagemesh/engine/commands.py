"""What others ask of the engine thread: calls queued by any thread, run in order by one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Command = Callable[[], None]


class CommandQueue:
    """A queue of calls that can be closed; what was queued before is still run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._closed = False

    def put(self, command: Command) -> bool:
        """Queue a call; False, without effect, once the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            self._commands.append(command)
            self._changed.notify()
            return True

    def run(self, wait: bool) -> bool:
        """Run everything queued, first waiting for something if told so; False once it is closed.

        A call that raises is gone, the ones behind it are still queued.
        """
        with self._changed:
            # Without a deadline: an engine with nothing to compute can only be changed by a command,
            # and closing ends the wait as well.
            self._changed.wait_for(lambda: self._commands or self._closed or not wait)
            num_commands = len(self._commands)
            is_open = not self._closed
        for _ in range(num_commands):
            self._commands.popleft()()
        return is_open

    def close(self) -> None:
        """Refuse further commands. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
