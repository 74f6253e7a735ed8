from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import small
import torch
from torch import Tensor

from pfedsim.core.guard import ABSURD, absurd, objection
from pfedsim.core.job import Job
from pfedsim.core.method import Fed, Memory, Message, Method, Reply


@dataclass(frozen=True)
class WithExtra(Method):
    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "counts": (3,)}


S = small.session(WithExtra())
SIZE = S.fed.layout.size
GOOD = Reply(
    1, 20.0, torch.zeros(SIZE).masked_fill(S.side.wire.kept, float("nan")), {"counts": torch.zeros(3)}
)


def objected(reply: Reply, declared: float = 20.0) -> str | None:
    return objection(S.method, S.fed, S.side.wire, 1, Message("train", S.fed.initial), reply, declared)


def _one(name: str, value: float) -> torch.Tensor:
    model = GOOD.model.clone()  # type: ignore[union-attr]
    S.fed.layout.view(model, name)[0] = value
    return model


def test_a_good_reply_passes_with_nothing_in_its_kept_entries() -> None:
    assert objected(GOOD) is None


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (
            replace(GOOD, model=_one("classifier.bias", float("nan"))),
            "model is not finite (first in classifier.bias)",
        ),
        (replace(GOOD, model=_one("bn.weight", float("inf"))), "model is not finite (first in bn.weight)"),
        (replace(GOOD, model=torch.zeros(SIZE + 1)), f"model has shape ({SIZE + 1},), expected ({SIZE},)"),
        (
            replace(GOOD, model=torch.zeros(SIZE, dtype=torch.float64)),
            "model is torch.float64, expected float32",
        ),
        (replace(GOOD, model=None), "it holds ['counts'], expected ['counts', 'model']"),
        (
            replace(GOOD, model=None, extra={**GOOD.extra, "model": torch.zeros(SIZE)}),
            "a model among its extras",
        ),
        (replace(GOOD, extra={**GOOD.extra, "model": torch.zeros(SIZE)}), "a model among its extras"),
        (replace(GOOD, extra={}), "it holds ['model'], expected ['counts', 'model']"),
        (
            replace(GOOD, extra={"count": torch.zeros(3)}),
            "it holds ['count', 'model'], expected ['counts', 'model']",
        ),
        (
            replace(GOOD, extra={**GOOD.extra, "more": torch.zeros(1)}),
            "it holds ['counts', 'model', 'more']",
        ),
        (replace(GOOD, extra={"counts": torch.zeros(3, 1)}), "counts has shape (3, 1), expected (3,)"),
        (replace(GOOD, extra={"counts": torch.tensor([0, 1, float("nan")])}), "counts is not finite"),
        (replace(GOOD, weight=0.0), "its weight is 0.0"),
        (replace(GOOD, weight=-1.0), "its weight is -1.0"),
        (replace(GOOD, weight=float("nan")), "its weight is nan"),
        (replace(GOOD, weight=21.0), "its weight is 21, but the client declared 20 samples"),
        (replace(GOOD, client=2), "it says that it comes from client 2"),
        (replace(GOOD, info={"loss": float("nan")}), "its training loss is nan"),
        (replace(GOOD, info={"loss": float("inf")}), "its training loss is inf"),
    ],
)
def test_a_bad_reply_is_named(reply: Reply, says: str) -> None:
    assert says in (objected(reply) or "")


def test_extra_models_are_judged_by_what_was_sent() -> None:
    @dataclass(frozen=True)
    class Two(Method):
        def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
            return {"two": (2, fed.layout.size)}

    s = small.session(Two())
    two = torch.zeros(2, s.fed.layout.size).masked_fill(s.side.wire.kept, float("nan"))
    message = Message("train", s.fed.initial)
    reply = Reply(0, 1.0, None, models={"two": two})
    assert objection(s.method, s.fed, s.side.wire, 0, message, reply) is None
    assert objection(s.method, s.fed, s.side.wire, 0, message, Reply(0, 1.0, None, {"two": two})) == (
        "two is not finite"  # what is no model is sent as it is, however wide
    )
    two[1, 0] = float("nan")
    assert objection(s.method, s.fed, s.side.wire, 0, message, reply) == "two is not finite"


@dataclass(frozen=True)
class Remembers(Method):
    """Clients remember a number that is none."""

    kept: bool = False

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        reply, memory = super().finish(job, ends)
        nan = torch.tensor([0.0, float("nan")])
        return reply, Memory(nan) if self.kept else replace(memory, extra={"memory": nan})


@pytest.mark.parametrize(("kept", "what"), [(True, "its kept entries"), (False, "memory")])
def test_what_a_client_keeps_must_be_finite_too(kept: bool, what: str) -> None:
    found, *_ = small.rounds(small.session(Remembers(kept)))
    assert found.replies == ()
    assert not found.state.memories
    assert {e["why"] for e in found.events} == {f"what the client keeps is not finite ({what})"}


def moved(client: int, distance: float) -> tuple[Message, Reply]:
    """A model that was moved so far from the one that was sent, which is far from zero itself."""
    sent = torch.full((SIZE,), 1000.0)
    step = torch.zeros(SIZE)
    step[0] = distance
    return Message("train", sent), Reply(
        client, 1.0, (sent + step).masked_fill(S.side.wire.kept, float("nan"))
    )


@pytest.mark.parametrize(("distance", "times"), [(0.9, None), (1.2, "120"), (1e4, "1000000")])
def test_a_step_is_absurd_by_the_median_of_the_others(distance: float, times: str | None) -> None:
    wave = [moved(0, 0.01), moved(1, 0.01), moved(2, distance), moved(3, 0.005)]
    found = absurd(wave, S.side.wire)
    # float32 steps around 1000 are a 16384th: 0.01 is kept as 0.0098, so that the times differ by some
    # percent
    assert set(found) == ({2} if times else set())
    if times:
        said = int(found[2].split(" is ")[1].split(" times")[0])
        assert said == pytest.approx(int(times), rel=0.05)
        assert said > ABSURD
    assert absurd(wave[1:3], S.side.wire) == {}  # two have no median to speak of
    # where most stand still nothing can be told
    assert absurd([moved(0, 0), moved(1, 0), moved(2, distance)], S.side.wire) == {}
