"""What the client's arguments may be: faults have the argument's name, before anything is sent."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from google.protobuf.message import Message

from pagemesh.errors import InvalidRequestError, shown


def check_names(settings: Mapping[str, object], kind: type) -> None:
    """InvalidRequestError for a setting that the TypedDict does not have, with the nearest one that it has."""
    known = kind.__annotations__
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequestError(f"there is no setting {name!r}{advice}", param=name)


@contextmanager
def told_as(name: str, value: object) -> Iterator[None]:
    """InvalidRequestError, with this name, where the block finds that a message cannot hold the value."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} is not valid Unicode: {error.reason} at character {error.start}", param=name
        ) from error
    except ValueError as error:
        raise InvalidRequestError(
            f"{name} is {shown(value)}, which is out of range", param=name
        ) from error
    except (TypeError, AttributeError) as error:
        raise InvalidRequestError(
            f"{name} is {shown(value)}, which is of the wrong type", param=name
        ) from error


def put(message: Message, field: str, value: object, name: str | None = None) -> None:
    """Set a message's field; the value is a sequence, or a mapping, where the field is."""
    with told_as(name or field, value):
        target = getattr(message, field)
        if hasattr(target, "extend"):
            if isinstance(value, (str, bytes)):
                raise TypeError("a text is no list of texts")
            target.extend(value)
        elif hasattr(target, "update"):
            target.update(value)
        else:
            setattr(message, field, value)
