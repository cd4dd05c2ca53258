"""Regular expressions by which a checkpoint's settings name modules, matched in bounded time.

They come with a file that anybody may have written, and Python's `re` tries one path after the other: `(a+)+b` takes it
longer than anybody waits. Here all places of a name that a part of an expression may end at are followed at once, as
bits of an integer, and the number of steps is limited. Python's parser reads the expressions, so that they mean what
they mean there, with looking ahead and behind. What needs to know by which path a place was reached is not supported:
references back, atomic groups, possessive repeats; nor are flags.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from pagemesh.errors import ConfigError

_MOST_CHARACTERS: Final = 4000
_MOST_NESTED: Final = 30
_STEPS: Final = 100
"""For each character of an expression and of a name: what is in use takes one or two."""

_PARSER: Final = importlib.import_module("re._parser")

_Nodes: TypeAlias = Sequence[tuple[Any, Any]]
"""What Python's parser makes of an expression: operations, each with what it is about."""


def check_pattern(text: str, where: str) -> None:
    """Raise ConfigError for what is no regular expression, or none that can be matched here."""
    try:
        _read(text)
    except ValueError as error:
        raise ConfigError(
            f"{where} must have regular expressions, but {text!r:.200} is none that can be matched: {error}"
        ) from None


def fits(text: str, name: str, where: str) -> bool:
    """Whether a checked expression fits the beginning of a name. ConfigError if that takes too many steps."""
    walk = _Walk(_Name.of(name), _STEPS * (len(text) + len(name)))
    try:
        return _read(text)(walk, 1) != 0
    except TimeoutError:
        raise ConfigError(
            f"{where} has the regular expression {text!r}, which takes too long to match with {name}"
        ) from None


class _Name:
    """A name. A set of its places is a number: bit 0 is the place before the first character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.before: dict[str, int] = {}
        """The places before each character."""
        for at, character in enumerate(text):
            self.before[character] = self.before.get(character, 0) | 1 << at

    @staticmethod
    @lru_cache(maxsize=64)
    def of(text: str) -> _Name:
        """Expressions come one after the other for the same name."""
        return _Name(text)


class _Walk:
    """Through one name, of so many steps at most."""

    def __init__(self, name: _Name, num_steps: int) -> None:
        self.name = name
        self._left = num_steps

    def count(self) -> None:
        """TimeoutError when there were too many."""
        self._left -= 1
        if self._left < 0:
            raise TimeoutError


_Step: TypeAlias = Callable[[_Walk, int], int]
"""Where a part of an expression may end that begins at one of some places."""


@lru_cache(maxsize=1024)
def _read(text: str) -> _Step:
    """ValueError for what cannot be matched."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, but {_MOST_CHARACTERS} are the most")
    try:
        parsed = _PARSER.parse(text)
    except (re.error, OverflowError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if parsed.state.flags & ~re.UNICODE:
        raise ValueError("flags are not supported")
    return _sequence(parsed, 0)


def _sequence(nodes: _Nodes, depth: int) -> _Step:
    if depth > _MOST_NESTED:
        raise ValueError("it is nested too deep")
    steps = [_step(str(operation), about, depth + 1) for operation, about in nodes]

    def ends(walk: _Walk, starts: int) -> int:
        for step in steps:
            if not starts:
                break
            walk.count()
            starts = step(walk, starts)
        return starts

    return ends


def _step(operation: str, about: Any, depth: int) -> _Step:
    match operation:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
            return partial(_consumed, _Characters(operation, about))
        case "BRANCH":
            return partial(_any_of, [_sequence(each, depth) for each in about[1]])
        case "SUBPATTERN":
            if about[1] or about[2]:
                raise ValueError("flags are not supported")
            return _sequence(about[3], depth)
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeat(int(about[0]), int(about[1]), about[2], depth)
        case "AT":
            return partial(_at, str(about))
        case "ASSERT" | "ASSERT_NOT":
            direction, nodes = about
            width = int(nodes.getwidth()[0]) if direction < 0 else None
            look = partial(_looking, width, _sequence(nodes, depth))
            return look if operation == "ASSERT" else lambda walk, at: at & ~look(walk, at)
        case "FAILURE":
            return lambda walk, starts: 0
    raise ValueError(f"{operation.lower()} is not supported")


def _any_of(branches: Sequence[_Step], walk: _Walk, starts: int) -> int:
    found = 0
    for branch in branches:
        found |= branch(walk, starts)
    return found


def _repeat(least: int, most: int, nodes: _Nodes, depth: int) -> _Step:
    characters = None
    if len(nodes) == 1 and str(nodes[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        characters = _Characters(str(nodes[0][0]), nodes[0][1])
    if characters is not None and least < 2 and most == int(_PARSER.MAXREPEAT):
        return partial(_run, least, characters)
    step = _sequence(nodes, depth)

    def ends(walk: _Walk, starts: int) -> int:
        # After as many turns as there are places only those are left at which a turn may end where it began.
        num_places = len(walk.name.text) + 1
        for _ in range(min(least, num_places)):
            starts = step(walk, starts)
        reached = new = starts
        for _ in range(min(most - least, num_places)):
            if not new:
                break
            new = step(walk, new) & ~reached
            reached |= new
        return reached

    return ends


def _run(least: int, characters: _Characters, walk: _Walk, starts: int) -> int:
    """Of none or one character at least, and however many: in steps of 1, 2, 4 and so on."""
    fitting, width = characters.places(walk.name), 1
    reached = (starts & fitting) << 1 if least else starts
    while fitting:
        reached |= (reached & fitting) << width
        fitting &= fitting >> width
        width *= 2
    return reached


def _looking(width: int | None, step: _Step, walk: _Walk, starts: int) -> int:
    """Those places ahead of which nodes fit, or behind which, if they have a width."""
    if width is None:
        return sum(1 << at for at in _places(starts) if step(walk, 1 << at))
    behind = (at for at in _places(starts) if at >= width)
    return sum(1 << at for at in behind if step(walk, 1 << at - width) >> at & 1)


def _places(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _at(what: str, walk: _Walk, starts: int) -> int:
    text = walk.name.text
    num = len(text)
    match what:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return starts & 1
        case "AT_END":
            return starts & (1 << num | (1 << num - 1 if text.endswith("\n") else 0))
        case "AT_END_STRING":
            return starts & 1 << num
    is_word = [False, *map(_is_word, text), False]
    edges = sum(1 << at for at in range(num + 1) if is_word[at] != is_word[at + 1])
    return starts & (edges if what == "AT_BOUNDARY" else ~edges)


def _consumed(characters: _Characters, walk: _Walk, starts: int) -> int:
    return (starts & characters.places(walk.name)) << 1


class _Characters:
    """Those that one node stands for."""

    def __init__(self, operation: str, about: Any) -> None:
        self._operation = operation
        self._about = about
        self._known: dict[str, bool] = {}

    def places(self, name: _Name) -> int:
        """Those before one of them."""
        if self._operation == "LITERAL":
            return name.before.get(chr(self._about), 0)
        found = 0
        for character, places in name.before.items():
            if character not in self._known:
                self._known[character] = self._has(character)
            if self._known[character]:
                found |= places
        return found

    def _has(self, character: str) -> bool:
        match self._operation:
            case "NOT_LITERAL":
                return ord(character) != int(self._about)
            case "ANY":
                return character != "\n"
        is_negated = str(self._about[0][0]) == "NEGATE"
        found = any(_is_of(str(kind), about, character) for kind, about in self._about[is_negated:])
        return found != is_negated


def _is_of(kind: str, about: Any, character: str) -> bool:
    """Whether a character is of an item of what stands in brackets."""
    match kind:
        case "LITERAL":
            return ord(character) == int(about)
        case "RANGE":
            return bool(about[0] <= ord(character) <= about[1])
    category = str(about).removeprefix("CATEGORY_")
    is_of = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _is_word}
    return is_of[category.removeprefix("NOT_")](character) != category.startswith("NOT_")


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
