"""The ordinary machinery, driven to the end of a run and looked into: what measurements need beyond a run's
folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pfedsim.core import Round, ServerState, score
from pfedsim.data import Federation
from pfedsim.runs import Config, Session, one_thread, prepare

if TYPE_CHECKING:
    from torch import Tensor


def rounds(config: Config, federation: Federation) -> Iterator[tuple[Session, ServerState, Round]]:
    """A run's rounds, each with the server that it began from."""
    with one_thread():
        session = prepare(config, federation)
        server = session.begin()
        for round in session.rounds(server):
            yield session, server, round
            server = round.server


def last(config: Config, federation: Federation) -> tuple[Session, ServerState]:
    """The run at its end."""
    for session, _, round in rounds(config, federation):
        end = session, round.server
    return end


def models(session: Session, server: ServerState) -> list[Tensor]:
    """Every client's model as served."""
    with one_thread():
        scores = score(session.side, server, models=True)
    return [c.model for c in scores.clients if c.model is not None]
