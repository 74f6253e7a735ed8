"""The process that does a site's work: packets come on standard input, answers go to standard output. It ends when
its input does."""

from __future__ import annotations

import json
import os
import queue
import struct
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from pfedsim.durable import in_turn, make_folder
from pfedsim.sites.process import ANSWER, ASK, AT, HEAD


def main(file: Path) -> None:
    """Answers until nobody asks any more. The site's folder is this process's alone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    asked: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, asked), daemon=True).start()

    from pfedsim.sites.premises import load
    from pfedsim.sites.site import Site

    premises = load(file)
    make_folder(premises.folder)
    with in_turn(premises.folder):
        site = Site(premises)
        while True:
            content = asked.get()
            (size,) = struct.unpack("<Q", content[:8])
            given_up = {int(client): why for client, why in json.loads(content[8 : 8 + size]).items()}
            packet = content[8 + size :]
            _write(
                answers,
                ANSWER,
                site.handle(packet, lambda i: _write(answers, AT, struct.pack("<q", i)), given_up),
            )


def _read(source: BinaryIO, asked: queue.Queue[bytes]) -> None:
    """Passes on what comes. If the parent is gone, this process ends at once, in the middle of its work."""
    while True:
        head = source.read(HEAD.size)
        if len(head) < HEAD.size:
            os._exit(0)
        kind, size = HEAD.unpack(head)
        content = source.read(size)
        if len(content) < size or kind != ASK:
            os._exit(0)
        asked.put(content)


def _write(answers: BinaryIO, kind: bytes, content: bytes) -> None:
    answers.write(HEAD.pack(kind, len(content)))
    answers.write(content)
    answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
