"""Estimate the disk space that a run needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from pfedsim.core.seeds import per_round
from pfedsim.errors import Error
from pfedsim.runs.config import BEST
from pfedsim.runs.setup import Session

ROW = 500  # bytes of one client's score in clients.csv: eight metrics and the confusion matrix
STATES = 3  # in checkpoints at the same time: two full ones, and deltas as large as one


def estimate(session: Session) -> tuple[int, int]:
    """The least and the most bytes that the run takes. The most assumes a separate model for every client that
    takes part, on the server and at the end."""
    config, settings, clients = session.config, session.fed.settings, session.fed.clients
    model = 4 * session.fed.layout.size
    took_part = min(clients, len(session.schedule) * per_round(clients, settings.join))
    scores = 1 + bool(config.score.finetune)
    if config.score.every:
        scores += len(session.schedule) // config.score.every
    texts = ROW * clients * scores + 8 * session.federation.samples
    states = STATES + config.state
    if config.stop is not None and config.stop.round == BEST:
        states *= 2  # every state brings that of the best round
    return 2 * model + texts, model * (2 + (1 + states) * took_part) + texts


def room(session: Session, out: Path) -> str:
    """Raise an error if the run cannot fit on the disk; return a warning if it might not, else ""."""
    least, most = estimate(session)
    free = shutil.disk_usage(out).free
    if free < least:
        raise Error(
            f"{out}: the run needs at least {least:,} bytes of disk, {free:,} are free; free some space or "
            "choose another folder"
        )
    if free < most:
        return (
            f"the run may need up to {most:,} bytes of disk, {free:,} are free at {out}; "
            "if the disk fills up, free some space and resume"
        )
    return ""
