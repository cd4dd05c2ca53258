"""Finds what may wait for ever in a file's syntax: awaits and blocking calls without a deadline.

An `await` is guilty until it is known to end: it has a timeout, stands in `asyncio.timeout`, or awaits a
coroutine of ours, in which the same is looked for. Blocking calls are known by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

from tools.symbols import module_of

_DEADLINES: Final = {"timeout", "timeout_at"}
"""Of asyncio: what is awaited inside of them ends."""

_OWN_DEADLINES: Final = {"answering", "probing"}
"""Of the kvstore's RedisStore, likewise; the time is a setting."""

_PROMPT: Final = {
    # The time is the argument.
    "sleep",
    # Of an RPC that is being served: what is sent is buffered.
    "abort",
    "abort_with_status",
    "send_initial_metadata",
    # Of an interceptor: finds the method, and does not run it.
    "continuation",
    # Of grpc's health servicer and server, and of stacks of coroutines of ours.
    "set",
    "enter_graceful_shutdown",
    "aclose",
}
"""Names of coroutines of others that do not wait for anybody."""

_AMBIGUOUS: Final = {"acquire", "get", "join", "put", "read", "receive", "wait", "write"}
"""Names that others' waits have as well: that we have a coroutine of this name does not clear them, unless it
is called on `self`."""

_TIMEOUT_AT: Final[dict[str, int | None]] = {
    "accept": None,
    "acquire": 1,
    "communicate": 1,
    "get": 1,
    "join": 0,
    "put": 2,
    "result": 0,
    "select": 0,
    "wait": 0,
    "wait_for": 1,
}
"""Blocking calls of the standard library: which of the arguments by position is the timeout."""

_NEVER_BOUNDED: Final = {
    "flock",
    "lockf",
    "recv",
    "recv_bytes",
    "recv_into",
    "recvmsg",
    "send_bytes",
    "sendall",
    "waitpid",
}
"""Blocking calls that take no timeout."""

_SUBPROCESS: Final = {"run", "call", "check_call", "check_output"}


class Wait(NamedTuple):
    """A place that may wait for ever."""

    file: str
    function: str
    """Qualified by its classes and functions; empty in the module itself."""
    call: str
    """What waits, as source text without arguments."""
    line: int

    @property
    def symbol(self) -> str:
        """The function, or the module, as the list names it: `pagemesh.decode.messages:OutputBuffer.take`."""
        return f"{module_of(PurePath(self.file))}:{self.function}".removesuffix(":")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.function}: {self.call}"


class Known(NamedTuple):
    """Names that all the files together define."""

    coroutines: frozenset[str]
    """What `await` and `async for` may take because it is looked into itself."""
    context_variables: frozenset[str]
    """Whose `get` waits for nobody."""

    @classmethod
    def of(cls, trees: Iterable[ast.Module]) -> Known:
        """Of these files."""
        coroutines: set[str] = set()
        variables: set[str] = set()
        for tree in trees:
            variables |= _context_variables(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.AsyncFunctionDef):
                    coroutines.add(node.name)
        return cls(frozenset(coroutines), frozenset(variables))


def waits(file: str, tree: ast.Module, known: Known) -> Iterator[Wait]:
    """Every place of the file that may wait for ever."""
    finder = _Finder(file, known)
    finder.visit(tree)
    yield from finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, known: Known) -> None:
        self.found: list[Wait] = []
        self._file = file
        self._known = known
        self._scopes: list[str] = []
        # Names of generators of ours, which are closed at the end of an `async with`.
        self._generators: set[str] = set()
        self._num_deadlines = 0
        # Of calls that an await was looked at for.
        self._awaited: set[ast.AST] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        num_before = self._num_deadlines
        for item in node.items:
            context = item.context_expr
            if _is_deadline(context):
                self._num_deadlines += 1
            elif _is_lock(context):
                self._note(context)
            elif self._is_closing_ours(context) and item.optional_vars is not None:
                self._generators.add(ast.unparse(item.optional_vars))
            self._awaited.add(context)
            self.visit(context)
        for statement in node.body:
            self.visit(statement)
        self._num_deadlines = num_before

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        if not self._is_ours(node.iter) and ast.unparse(node.iter) not in self._generators:
            self._note(node.iter)
        self._awaited.add(node.iter)
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        if not self._ends(node.value):
            self._note(node.value)
        self._awaited.add(node.value)
        if isinstance(node.value, ast.Call) and _last_name(node.value.func) == "wait_for":
            # What it is given is judged with it.
            self._awaited.update(node.value.args[:1])
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if _last_name(node.iter).lower().lstrip("_") in ("call", "calls", "responses"):
            self._note(node.iter)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if node not in self._awaited and self._blocks(node):
            self._note(node)
        self.generic_visit(node)

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        # What a nested function does happens when it is called, which may be outside of the deadline.
        num_deadlines, self._num_deadlines = self._num_deadlines, 0
        generators, self._generators = self._generators, set()
        self._scopes.append(node.name)
        self.generic_visit(node)
        self._scopes.pop()
        self._num_deadlines, self._generators = num_deadlines, generators

    def _note(self, node: ast.AST) -> None:
        if not self._num_deadlines:
            line = getattr(node, "lineno", 0)
            call = ast.unparse(node.func if isinstance(node, ast.Call) else node)
            self.found.append(Wait(self._file, ".".join(self._scopes), call, line))

    def _ends(self, awaited: ast.expr) -> bool:
        """Whether an awaited expression ends, as far as can be seen here."""
        if not isinstance(awaited, ast.Call):
            return False
        name = _last_name(awaited.func)
        if name == "wait_for":
            return _is_given(_argument(awaited, "timeout", 1))
        return (
            name in _PROMPT
            or _is_given(_argument(awaited, "timeout", None))
            or self._is_ours(awaited)
        )

    def _is_ours(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        name = _last_name(node.func)
        if name not in self._known.coroutines or _is_rpc(node.func):
            return False
        of_self = isinstance(node.func, ast.Name) or ast.unparse(node.func) in (
            f"self.{name}",
            f"cls.{name}",
        )
        return name not in _AMBIGUOUS or of_self

    def _is_closing_ours(self, context: ast.expr) -> bool:
        return (
            isinstance(context, ast.Call)
            and _last_name(context) == "aclosing"
            and self._is_ours(context.args[0])
        )

    def _blocks(self, node: ast.Call) -> bool:
        """Whether a call that is not awaited blocks its thread, or begins an RPC, without a bound."""
        name = _last_name(node.func)
        if _is_rpc(node.func):
            return not _is_given(_argument(node, "timeout", 1))
        if name == "urlopen":
            return not _is_given(_argument(node, "timeout", 2))
        if not isinstance(node.func, ast.Attribute):
            return False
        receiver = ast.unparse(node.func.value)
        if receiver == "subprocess":
            return name in _SUBPROCESS and not _is_given(_argument(node, "timeout", None))
        if name in _NEVER_BOUNDED:
            return True
        if name == "send":
            return "connection" in receiver.lower() or "socket" in receiver.lower()
        if name not in _TIMEOUT_AT or receiver in ("asyncio", *self._known.context_variables):
            return False
        if name in ("accept", "acquire", "get", "put", "select") and node.args:
            # Of pools, mappings and caches. Locks and queues have at most a flag there.
            first = node.args[0]
            if name == "put" or not (isinstance(first, ast.Constant) and first.value is True):
                return False
        if _is_false(_argument(node, "blocking", None)) or _is_false(
            _argument(node, "block", None)
        ):
            return False
        return not _is_given(_argument(node, "timeout", _TIMEOUT_AT[name]))


def _context_variables(tree: ast.Module) -> frozenset[str]:
    """Names of the module's context variables, whose `get` waits for nobody."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and "ContextVar" in ast.unparse(node):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and "ContextVar" in ast.unparse(node.value):
            names.update(map(ast.unparse, node.targets))
    return frozenset(names)


def _is_lock(node: ast.expr) -> bool:
    """Whether leaving or entering it waits for others."""
    text = ast.unparse(node).lower()
    return any(word in text for word in ("lock", "semaphore", "taskgroup", "condition"))


def _is_deadline(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = _last_name(node.func)
    return name in _OWN_DEADLINES or (
        name in _DEADLINES and _is_given(node.args[0] if node.args else None)
    )


def _is_rpc(function: ast.expr) -> bool:
    """Whether it looks like a method of a stub, all of which are written LikeThis."""
    if not isinstance(function, ast.Attribute):
        return False
    name, receiver = function.attr, ast.unparse(function.value)
    return name[:1].isupper() and not name.isupper() and "stub" in receiver.lower()


def _argument(call: ast.Call, keyword: str, position: int | None) -> ast.expr | None:
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    if position is not None and position < len(call.args):
        return call.args[position]
    return None


def _is_given(argument: ast.expr | None) -> bool:
    return argument is not None and not (
        isinstance(argument, ast.Constant) and argument.value is None
    )


def _is_false(argument: ast.expr | None) -> bool:
    return isinstance(argument, ast.Constant) and argument.value is False


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
        case _:
            return ""
