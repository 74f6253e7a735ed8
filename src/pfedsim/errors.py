"""One base error: its message is one sentence that names the thing, the value it got and what would be
right."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Diverged", "Error", "HookError", "Impure", "Notice", "Unreadable", "must", "nearest"]

LONGEST = 60  # characters of a wrong value that a message shows
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}  # pydantic's words


class Error(Exception):
    """Something the user can put right. The command line prints it and exits with 2."""


class HookError(Error):
    """A method's hook failed; names the method, the hook, the client and the round. The cause is
    `__cause__`."""


class Diverged(HookError):
    """Training left nothing finite to go on with: other settings may do better, and nothing else is wrong."""


class Impure(Error):
    """A hook changed what it was given. It stops the run, because the results would depend on the engine and on
    where a run was resumed."""


class Unreadable(Error):
    """A client's data cannot be read: it is absent, and the run goes on."""


class Notice(UserWarning):
    """A result the user should read with care; shown once and kept in the run's events."""


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the closest known word, or the known words themselves."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def must(refusal: Mapping[str, Any], wish: str = "") -> str:
    """'VALUE: must be ...' for one of pydantic's errors; `wish` replaces the words after the colon. A number given as
    text is shown without quotes."""
    for key, word in LIMITS.items():
        if (limit := refusal.get("ctx", {}).get(key)) is not None:
            return f"{refusal['input']}: must be {word} {int(limit) if limit == int(limit) else limit}"
    message = refusal["msg"].replace("Input should", "must")
    if refusal["type"] != "literal_error":
        message = message.partition(",")[0]
    text = repr(refusal["input"])
    if len(text) > LONGEST or "\n" in text:
        text = f"{text.splitlines()[0][:LONGEST]}..."
    return f"{text}: {wish or message}"
