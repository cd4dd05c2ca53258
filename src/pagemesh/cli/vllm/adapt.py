"""Arguments as vLLM's users type them, made into this project's own."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pagemesh.cli.arguments import UsageError
from pagemesh.cli.vllm.flags import (
    CHANGING,
    GGUF_FILE,
    LOAD_FORMAT,
    MODES,
    OBJECTS,
    OVERRIDES,
    REFUSED_VALUES,
    RULES,
    SHORT,
    SWITCHES,
    UNSET_VALUES,
)
from pagemesh.cli.vllm.rules import Fate, Kind, Rule, own_flags
from pagemesh.cli.vllm.variants import Changes
from pagemesh.config.served import split_name, with_gguf_file

_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")

_FACTORS: Final = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
"""As vLLM has them: small letters are decimal."""

_HELP: Final = ("-h", "--help")


@dataclass(slots=True)
class Adapted:
    """Arguments of ours, and what their user should know."""

    arguments: list[str] = field(default_factory=list)

    notes: list[str] = field(default_factory=list)
    """Sentences, for one log line each."""

    changes: Changes = field(default_factory=Changes)
    """Of the model, which no flag of ours says."""

    load_format: str = "auto"
    """What every model has to be, which no flag of ours says."""

    @property
    def models(self) -> list[str]:
        """Values of --model; of several such flags the last one counts."""
        found: list[str] = []
        values: list[str] | None = None
        for each in self.arguments:
            if each == "--model":
                values = found = []
            elif each.startswith("--"):
                values = None
            elif values is not None:
                values.append(each)
        return found

    @property
    def flags(self) -> set[str]:
        """The flags among the arguments, in their positive form."""
        return {_positive(each)[0] for each in self.arguments if each.startswith("--")}

    def tell(self, prog: str) -> None:
        """Say on stderr what there is to know."""
        for note in self.notes:
            print(f"{prog}: {note}", file=sys.stderr, flush=True)

    def take_out(self, flag: str) -> None:
        """Remove a flag and its values, as often as it is there."""
        left: list[str] = []
        is_dropped = False
        for each in self.arguments:
            if each.startswith("--"):
                is_dropped = each == flag
            if not is_dropped:
                left.append(each)
        self.arguments = left

    def serve_instead(self, model: str) -> None:
        """Put a value of --model in the place of those that are there."""
        self.take_out("--model")
        self.arguments[:0] = ["--model", model]


def adapt(settings: type[Any], arguments: Sequence[str]) -> Adapted:
    """Arguments for `settings`, which have a --model; a first argument that no flag takes is that one's value.

    Raises UsageError for what is not known, and for what is refused, with what to write instead.
    """
    return _Reader(own_flags(settings), arguments).read()


def plain_number(text: str) -> str:
    """An integer that may be written as 32k or 1.5M; anything else as it is."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    number = float(found[1]) * _FACTORS[found[2]]
    return str(int(number)) if number.is_integer() else text


class _Reader:
    def __init__(self, own: Mapping[str, Kind], arguments: Sequence[str]) -> None:
        self._own = own
        self._left = list(_split(arguments))
        self._found = Adapted()
        self._model: str | None = None
        self._gguf_file: str | None = None
        # Members of JSON objects that were given one by one.
        self._members: dict[str, dict[str, Any]] = {}

    def read(self) -> Adapted:
        while self._left:
            argument = self._left.pop(0)
            if argument in _HELP:
                self._found.arguments.append(argument)
            elif argument.startswith("-") and len(argument) > 1:
                self._flag(SHORT.get(argument, argument.replace("_", "-")))
            elif self._model is None:
                self._model = argument
            else:
                raise UsageError(f"{argument!r} belongs to no flag, and the model is {self._model}")
        found = self._found
        if self._model is not None:
            if "--model" in found.flags:
                raise UsageError(f"--model is given beside {self._model!r}: write one of them")
            found.arguments[:0] = ["--model", self._model]
        self._settle_gguf()
        self._settle_tokenizer()
        for flag, members in self._members.items():
            if flag in found.flags:
                raise UsageError(
                    f"{flag} is given beside {flag}.{next(iter(members))}: write one of them"
                )
            if flag == OVERRIDES:
                found.changes.overrides |= members
            else:
                self._add(flag, json.dumps(members))
        return found

    def _flag(self, flag: str) -> None:
        positive, is_positive = _positive(flag)
        name = positive.partition(".")[0]
        rule = RULES.get(name)
        if name == "--performance-mode":
            self._mode()
        elif name == "--tokenizer":
            self._found.changes.tokenizer = self._value(name)
        elif name == GGUF_FILE:
            self._gguf_file = self._value(name)
        elif name in CHANGING and name == positive:
            self._change(name)
        elif rule is not None and rule.fate is Fate.RENAMED:
            assert rule.flag is not None
            value = self._value(flag)
            self._add(rule.flag, rule.values.get(value, value))
        elif rule is not None and rule.fate is not Fate.SAME:
            self._other(rule, name, is_positive=is_positive)
        elif name in (*OBJECTS, OVERRIDES) and name != positive:
            self._member(name, positive.removeprefix(f"{name}."))
        elif name in self._own:
            self._ours(name, flag)
        else:
            raise UsageError(f"there is no flag {flag}{_nearest(flag, self._own)}")

    def _ours(self, name: str, flag: str) -> None:
        if name in SWITCHES and not (self._left and self._left[0] in (*SWITCHES[name], "auto")):
            self._add(name, SWITCHES[name][flag != name])
            return
        match self._own[name]:
            case Kind.SWITCH:
                self._add(flag)
            case Kind.LIST:
                self._add(flag, *self._values())
            case Kind.NUMBER:
                value = self._value(flag)
                if value not in UNSET_VALUES.get(name, ()):
                    self._add(flag, plain_number(value))
            case Kind.TEXT:
                value = self._value(flag)
                if value in UNSET_VALUES.get(name, ()):
                    return
                if reason := REFUSED_VALUES.get((name, value)):
                    raise UsageError(f"{name} {value} is not taken: {reason}")
                self._add(flag, value)

    def _member(self, flag: str, path: str) -> None:
        """A member of a JSON object, by its name or by those of the objects that it is in."""
        *outer, name = path.replace("-", "_").split(".")
        inner = self._members.setdefault(flag, {})
        for key in outer:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{flag}.{path} is in {key}, which has another value")
        text = self._value(f"{flag}.{path}")
        try:
            inner[name] = json.loads(text)
        except ValueError:
            inner[name] = text

    def _other(self, rule: Rule, name: str, *, is_positive: bool) -> None:
        if not is_positive:
            # Off is what it is here, unless it is always on.
            if rule.fate is Fate.ALWAYS:
                raise UsageError(f"--no-{name[2:]} cannot be: {rule.says}")
            return
        if not rule.takes_value:
            if rule.fate in (Fate.PLANNED, Fate.REFUSED):
                raise UsageError(_refusal(name, rule))
            self._found.notes.append(f"{name}: {rule.says}")
            return
        value = self._value(name)
        if rule.neutral and value not in rule.neutral:
            raise UsageError(_refusal(f"{name} {value}", rule))
        if name == LOAD_FORMAT:
            self._found.load_format = value
        if rule.fate is Fate.NO_EFFECT:
            self._found.notes.append(f"{name} {value}: {rule.says}")

    def _mode(self) -> None:
        mode = self._value("--performance-mode")
        if mode not in MODES:
            known = ", ".join(MODES)
            raise UsageError(f"--performance-mode is {mode!r}, but must be one of {known}")
        given = {_positive(each)[0] for each in [*self._found.arguments, *self._left]}
        for flag, value in MODES[mode].items():
            if flag not in given:
                self._add(flag, value)

    def _change(self, flag: str) -> None:
        """Values for config.json, as JSON: an object of them, or one."""
        text = self._value(flag)
        try:
            value = json.loads("null" if text == "None" else text)
        except ValueError:
            raise UsageError(f"{flag} is {text!r}, but must be JSON") from None
        key = CHANGING[flag]
        if key is None and not isinstance(value, dict):
            raise UsageError(f"{flag} is {text!r}, but must be a JSON object")
        if value is not None:
            self._found.changes.overrides |= value if key is None else {key: value}

    def _settle_gguf(self) -> None:
        """Put a file's name behind the model's."""
        file, models = self._gguf_file, self._found.models
        if file is None:
            return
        if not models:
            raise UsageError(f"{GGUF_FILE} is {file!r}, but there is no --model")
        if len(models) > 1:
            raise UsageError(
                f"{GGUF_FILE} is {file!r}, but --model has {len(models)} models, {' and '.join(models)}: write"
                " FOLDER/FILE.gguf or owner/name:FILE.gguf in the place of each"
            )
        name, source = split_name(models[0])
        whole = with_gguf_file(source, file)
        self._found.serve_instead(whole if name is None else f"{name}={whole}")

    def _settle_tokenizer(self) -> None:
        """A model's own tokenizer changes nothing."""
        models, changes = self._found.models, self._found.changes
        if models and changes.tokenizer and changes.tokenizer.rstrip("/") == models[0].rstrip("/"):
            changes.tokenizer = None

    def _add(self, *arguments: str) -> None:
        self._found.arguments += arguments

    def _value(self, flag: str) -> str:
        if not self._left:
            raise UsageError(f"{flag} needs a value")
        return self._left.pop(0)

    def _values(self) -> Iterator[str]:
        while self._left and not self._left[0].startswith("-"):
            yield self._left.pop(0)


def _split(arguments: Sequence[str]) -> Iterator[str]:
    """With values that stand behind an equals sign as arguments of their own."""
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if equals and flag.startswith("-"):
            yield from (flag, value)
        else:
            yield argument


def _positive(flag: str) -> tuple[str, bool]:
    if flag.startswith("--no-"):
        return f"--{flag[5:]}", False
    return flag, True


def _refusal(what: str, rule: Rule) -> str:
    kind = "is not there yet" if rule.fate is Fate.PLANNED else "is not taken"
    return f"{what} {kind}: {rule.says}"


def _nearest(flag: str, own: Mapping[str, Kind]) -> str:
    """The flag that was probably meant, as the rest of a sentence."""
    known = [*own, *(name for name, rule in RULES.items() if rule.fate is not Fate.REFUSED)]
    near = difflib.get_close_matches(_positive(flag)[0], known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
