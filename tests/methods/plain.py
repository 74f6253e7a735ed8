"""Local SGD written out with autograd and nothing of pfedsim's loops: what tests of methods compare with."""

from __future__ import annotations

from collections.abc import Callable

import small
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from pfedsim.runs.setup import Session

WORDS = {"shuffle": False, "buffers": "shared", "batch": 8, "lr": 0.1, "epochs": 2}


def session(method, train=(20, 9, 33), **more) -> Session:
    """A method on a table of three clients, all of them in every round; all entries travel."""
    return small.session(method, small.table(train), **{**WORDS, **more})


def batches(s: Session, client: int) -> list[tuple[Tensor, Tensor]]:
    x, y = small.normal(s, client)
    return [(a, b) for a, b in zip(x.split(8), y.split(8), strict=True) if len(b) > 1]


def scores(s: Session, theta: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The network's output in train mode, and all tensors with the norm statistics that this pass moved."""
    named = {k: v.detach().clone() if "running" in k else v for k, v in s.fed.layout.named(theta).items()}
    return functional_call(small.module(s).train(), named, (x,)), named


def sgd(
    s: Session,
    client: int,
    theta: Tensor,
    epochs: int = 2,
    lr: float = 0.1,
    moves: Tensor | None = None,
    penalty: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Epochs of plain SGD over the client's samples in stored order; `penalty` is added to the loss."""
    moves = s.fed.layout.trainable if moves is None else moves
    theta = theta.clone()
    for x, y in batches(s, client) * epochs:
        at = theta.clone().requires_grad_()
        out, named = scores(s, at, x)
        loss = F.cross_entropy(out, y) + (0 if penalty is None else penalty(at))
        (g,) = torch.autograd.grad(loss, at)
        theta = theta - lr * g.where(moves, 0)
        for name in named:
            if "running" in name:
                s.fed.layout.view(theta, name).copy_(named[name])
    return theta


def mean(models: list[Tensor], weights: list[float]) -> Tensor:
    return (
        sum(w * m.double() for w, m in zip(weights, models, strict=True)).float() / sum(weights)  # type: ignore[union-attr]
    )


def close(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def served(s: Session, state) -> list[Tensor]:
    return [one.model for one in small.score(s, state, models=True).clients]
