"""JSON files that carry the sha256 of their own content under the key `sha256`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedsim.errors import Error

KEY = "sha256"


def digest(content: Mapping[str, Any]) -> str:
    """sha256 of the content as JSON with sorted keys. Spaces, line breaks and the order of keys do not count."""
    plain = json.loads(json.dumps(content))  # turns numbers used as keys into text, as reading does
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> str:
    """The text of a file with this content and its sha256."""
    return json.dumps({**content, KEY: digest(content)}, indent=1) + "\n"


def load(path: Path, what: str) -> dict[str, Any]:
    """The content of a sealed file, after checking its sha256. `what` the file should be, for messages."""
    try:
        content = json.loads(path.read_bytes())
        recorded = content.pop(KEY)
        found = digest(content)
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise Error(f"{path} is damaged: it is not {what} with its sha256") from error
    if recorded != found:
        raise Error(f"{path} is damaged: its content does not match its sha256")
    return dict(content)
