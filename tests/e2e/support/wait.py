"""Waiting for conditions."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], within: float = 15, every: float = 0.05) -> T:
    """Calls `condition` until it returns something true, and returns that. Fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"waited {within} s in vain for {what}"
        time.sleep(every)


def seconds(action: Callable[[], object]) -> float:
    """How long `action` takes."""
    begun = time.monotonic()
    action()
    return time.monotonic() - begun
