"""The chat templates of a model folder: one for all conversations, or several with names, as transformers has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pagemesh.errors import ConfigError, UnsupportedError
from pagemesh.tokenizer.chat_template import MAX_SOURCE_CHARS, ChatTemplate
from pagemesh.tokenizer.folder import read_json

DEFAULT: Final = "default"
WITH_TOOLS: Final = "tool_use"
WITH_DOCUMENTS: Final = "rag"

_FILE: Final = "chat_template.jinja"
_FOLDER: Final = "additional_chat_templates"
_JSON_FILES: Final = ("tokenizer_config.json", "chat_template.json")
"""That of the tokenizer, then that of older processors."""


class ChatTemplates:
    """Templates by their names."""

    def __init__(self, named: Mapping[str, ChatTemplate]) -> None:
        self._named = dict(named)

    def choose(self, *, has_tools: bool = False, has_documents: bool = False) -> ChatTemplate:
        """The one for a conversation with these; UnsupportedError when the model has none for it."""
        wanted = {WITH_TOOLS: has_tools, WITH_DOCUMENTS: has_documents, DEFAULT: True}
        for name, is_wanted in wanted.items():
            if is_wanted and name in self._named:
                return self._named[name]
        if not self._named:
            raise UnsupportedError(
                "the model has no chat template: use completions with a plain prompt",
                param="messages",
            )
        raise UnsupportedError(
            f"the model has chat templates for {', '.join(self._named)} alone, and none for this conversation",
            param="messages",
        )

    @property
    def source(self) -> str:
        """The text of all, "" for none."""
        return "\n".join(template.source for template in self._named.values())

    def load(self) -> None:
        """Find out now, and not when a conversation comes, in which form they want messages."""
        for template in self._named.values():
            _ = template.shape


def load_chat_templates(folder: Path, variables: Mapping[str, str]) -> ChatTemplates:
    """Those of a model folder: files of their own, else those in JSON files; ConfigError names what is wrong."""
    sources = _in_files(folder)
    for name in _JSON_FILES:
        sources = sources or _in_json(folder, name)
    num_chars = sum(len(text) for _, text in sources.values())
    if num_chars > MAX_SOURCE_CHARS:
        raise ConfigError(
            f"{folder} has chat templates of {num_chars} characters, but {MAX_SOURCE_CHARS} are the most"
        )
    return ChatTemplates(
        {name: _template(path, text, variables) for name, (path, text) in sources.items()}
    )


def read_chat_template(path: Path, variables: Mapping[str, str]) -> ChatTemplate:
    """The one in a file; ConfigError naming it."""
    return _template(path, _read(path), variables)


def _in_files(folder: Path) -> dict[str, tuple[Path, str]]:
    paths = {path.stem: path for path in sorted((folder / _FOLDER).glob("*.jinja"))}
    if (folder / _FILE).exists():
        paths[DEFAULT] = folder / _FILE
    return {name: (path, _read(path)) for name, path in paths.items()}


def _in_json(folder: Path, file: str) -> dict[str, tuple[Path, str]]:
    given: Any = read_json(folder, file).get("chat_template")
    if given is None:
        return {}
    named = {DEFAULT: given} if isinstance(given, str) else given
    if isinstance(given, list):
        entries = [entry if isinstance(entry, dict) else {} for entry in given]
        named = {entry.get("name"): entry.get("template") for entry in entries}
    if not isinstance(named, dict) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in named.items()
    ):
        raise ConfigError(
            f"{folder / file}: chat_template must be a template, or a list of objects with name and template"
        )
    return {name: (folder / file, text) for name, text in named.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _template(path: Path, source: str, variables: Mapping[str, str]) -> ChatTemplate:
    try:
        return ChatTemplate(source, variables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error
