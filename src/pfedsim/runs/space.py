"""How much room a run's folder will take."""

from __future__ import annotations

import shutil
from pathlib import Path

from pfedsim.core.seeds import per_round
from pfedsim.errors import Error
from pfedsim.runs.setup import Session

ROW = 500  # bytes of one client's score in clients.csv: eight metrics and the confusion matrix
STATES = 3  # in checkpoints at once: two whole ones, and deltas as large as one


def estimate(session: Session) -> tuple[int, int]:
    """Bytes that the run takes at least, and at most: as if every client that ever takes part had a model
    of its own, on the server and at the end."""
    config, settings, clients = session.config, session.fed.settings, session.fed.clients
    model = 4 * session.fed.layout.size
    took_part = min(clients, len(session.schedule) * per_round(clients, settings.join))
    scores = (
        1
        + (len(session.schedule) // config.score.every if config.score.every else 0)
        + bool(config.score.finetune)
    )
    texts = ROW * clients * scores + 8 * len(session.federation.data.y)
    states = STATES + config.state
    return 2 * model + texts, model * (2 + (1 + states) * took_part) + texts


def room(session: Session, out: Path) -> str:
    """Refuses to start where the run cannot fit; a sentence where it might not, else nothing."""
    least, most = estimate(session)
    free = shutil.disk_usage(out).free
    if free < least:
        raise Error(
            f"{out}: the run needs at least {least:,} bytes of disk, {free:,} are free; make room or "
            "choose another folder"
        )
    if free < most:
        return (
            f"the run may need up to {most:,} bytes of disk, {free:,} are free at "
            f"{out}; should they not do, make room and resume"
        )
    return ""
