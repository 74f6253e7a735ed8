"""The ordinary machinery, driven to the end of a run and looked into: what measurements need beyond a run's
folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pfedsim.core import Round, State, run_rounds, score
from pfedsim.data import Federation
from pfedsim.runs import Config, Session, one_thread, prepare

if TYPE_CHECKING:
    from torch import Tensor


def rounds(config: Config, federation: Federation) -> Iterator[tuple[Session, State, Round]]:
    """A run's rounds, each with the state that it began from."""
    with one_thread():
        session = prepare(config, federation)
        state = session.begin()
        for round in run_rounds(
            session.method, session.fed, session.kept, session.engine, session.schedule, state
        ):
            yield session, state, round
            state = round.state


def last(config: Config, federation: Federation) -> tuple[Session, State]:
    """The run at its end."""
    for session, _, round in rounds(config, federation):
        end = session, round.state
    return end


def models(session: Session, state: State) -> list[Tensor]:
    """Every client's model as served."""
    with one_thread():
        scores = score(session.method, session.fed, session.kept, session.engine, state, models=True)
    return [c.model for c in scores.clients if c.model is not None]
