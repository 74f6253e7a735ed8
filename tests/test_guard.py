from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import small
import torch

from pfedsim.guard import objection
from pfedsim.method import Fed, Message, Method, Reply


@dataclass(frozen=True)
class WithExtra(Method):
    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        return {"model": (fed.layout.size,), "counts": (3,)}


S = small.session(WithExtra())
SIZE = S.fed.layout.size
GOOD = Reply(1, 20.0, torch.zeros(SIZE).masked_fill(S.kept, float("nan")), {"counts": torch.zeros(3)})


def objected(reply: Reply) -> str | None:
    return objection(S.method, S.fed, Message("train", S.fed.initial), reply, S.kept)


def _one(name: str, value: float) -> torch.Tensor:
    model = GOOD.model.clone()  # type: ignore[union-attr]
    S.fed.layout.view(model, name)[0] = value
    return model


def test_a_good_reply_passes_with_nothing_in_its_kept_entries() -> None:
    assert objected(GOOD) is None


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (replace(GOOD, model=_one("classifier.bias", float("nan"))), "model is not finite (first in classifier.bias)"),
        (replace(GOOD, model=_one("bn.weight", float("inf"))), "model is not finite (first in bn.weight)"),
        (replace(GOOD, model=torch.zeros(SIZE + 1)), f"model has shape ({SIZE + 1},), expected ({SIZE},)"),
        (replace(GOOD, model=torch.zeros(SIZE, dtype=torch.float64)), "model is torch.float64, expected float32"),
        (replace(GOOD, model=None), "it holds ['counts'], expected ['counts', 'model']"),
        (replace(GOOD, extra={}), "it holds ['model'], expected ['counts', 'model']"),
        (replace(GOOD, extra={"count": torch.zeros(3)}), "it holds ['count', 'model'], expected ['counts', 'model']"),
        (replace(GOOD, extra={**GOOD.extra, "more": torch.zeros(1)}), "it holds ['counts', 'model', 'more']"),
        (replace(GOOD, extra={"counts": torch.zeros(3, 1)}), "counts has shape (3, 1), expected (3,)"),
        (replace(GOOD, extra={"counts": torch.tensor([0, 1, float("nan")])}), "counts is not finite"),
        (replace(GOOD, weight=0.0), "its weight is 0.0"),
        (replace(GOOD, weight=-1.0), "its weight is -1.0"),
        (replace(GOOD, weight=float("nan")), "its weight is nan"),
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
    two = torch.zeros(2, s.fed.layout.size).masked_fill(s.kept, float("nan"))
    message = Message("train", s.fed.initial)
    assert objection(s.method, s.fed, message, Reply(0, 1.0, None, {"two": two}), s.kept) is None
    two[1, 0] = float("nan")
    assert objection(s.method, s.fed, message, Reply(0, 1.0, None, {"two": two}), s.kept) == "two is not finite"
