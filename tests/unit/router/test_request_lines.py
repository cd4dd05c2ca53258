"""Lines of requests in the log, for those who ask for them."""

from __future__ import annotations

import pytest

from pagemesh.config import RequestLogConfig
from pagemesh.errors import ConfigError, InvalidRequestError, UnavailableError, UnsupportedError
from pagemesh.rpc.status import for_log


def test_a_length_below_nothing_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--max-log-len is -1, but must be 0 or more"):
        RequestLogConfig(max_log_len=-1)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            InvalidRequestError("messages is 'my prompt', but must be a list", param="messages"),
            {"reason": "INVALID_REQUEST", "status": 400, "param": "messages"},
        ),
        (
            InvalidRequestError("no 'my prompt' here", param="my prompt"),
            {"reason": "INVALID_REQUEST", "status": 400},
        ),
        (
            UnavailableError("no worker", reason="NO_WORKER"),
            {"reason": "NO_WORKER", "status": 503, "error": "no worker"},
        ),
    ],
    ids=["a field", "a field of the client's invention", "ours"],
)
def test_of_a_clients_mistake_the_log_has_the_field_and_none_of_its_words(
    error: InvalidRequestError, told: dict[str, object]
) -> None:
    assert for_log(error) == told


def test_what_is_not_supported_is_a_clients_mistake_too() -> None:
    assert "error" not in for_log(UnsupportedError("'my prompt' is not supported"))
