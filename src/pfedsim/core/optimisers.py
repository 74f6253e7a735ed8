"""What turns a gradient into a step: at the clients for one phase, at the server from round to round.

SGD and Adam as in torch.optim; the server's as in Reddi et al., Adaptive federated optimization, ICLR 2021
(Algorithm 2), and Hsu et al. 2019 (FedAvgM)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pfedsim.core.settings import ServerOptimiser, Training

if TYPE_CHECKING:
    from torch import Tensor

Step = Callable[["Tensor"], "Tensor"]
Moments = Mapping[str, "Tensor"]


def plain(settings: Training) -> bool:
    """Whether steps are SGD as a backend does it in one call: with momentum, without Nesterov's."""
    chosen = settings.optimiser
    return chosen is None or (chosen.rule == "sgd" and not chosen.nesterov)


def follower(settings: Training) -> Step:
    """A phase's optimiser: from each gradient in turn to the direction of its step. It begins without a past."""
    chosen = settings.optimiser
    if chosen is not None and chosen.rule == "adam":
        return _adam(*chosen.betas, chosen.epsilon)
    return _sgd(settings.momentum, chosen is not None and chosen.nesterov)


def _sgd(momentum: float, nesterov: bool) -> Step:
    velocity: Tensor | None = None

    def step(gradient: Tensor) -> Tensor:
        nonlocal velocity
        if not momentum:
            return gradient
        velocity = gradient if velocity is None else momentum * velocity + gradient
        return gradient + momentum * velocity if nesterov else velocity

    return step


def _adam(beta1: float, beta2: float, epsilon: float) -> Step:
    first: Tensor | None = None
    second: Tensor | None = None
    k = 0

    def step(gradient: Tensor) -> Tensor:
        nonlocal first, second, k
        k += 1
        if first is None or second is None:
            first, second = gradient * 0, gradient * 0
        first = first * beta1 + gradient * (1 - beta1)
        second = second * beta2 + gradient * gradient * (1 - beta2)
        return (first / (1 - beta1**k)) / ((second / (1 - beta2**k)).sqrt() + epsilon)

    return step


def served(
    chosen: ServerOptimiser, before: Tensor, after: Tensor, moments: Moments, trainable: Tensor
) -> tuple[Tensor, Moments]:
    """The server's model, for which `after - before` is a pseudo-gradient, and the moments that follow. Entries that
    no training moves, such as norm statistics, are taken as they are."""
    import torch

    delta = (after - before).double()
    if chosen.rule == "momentum":
        velocity = chosen.momentum * moments.get("velocity", delta * 0) + delta
        step, found = velocity, {"velocity": velocity}
    else:
        beta1, beta2 = chosen.betas
        first = beta1 * moments.get("first", delta * 0) + (1 - beta1) * delta
        square, second = delta * delta, moments.get("second", delta * 0 + chosen.tau**2)
        if chosen.rule == "yogi":
            second = second - (1 - beta2) * square * torch.sign(second - square)
        else:
            second = beta2 * second + (1 - beta2) * square
        step, found = first / (second.sqrt() + chosen.tau), {"first": first, "second": second}
    return torch.where(trainable, (before.double() + chosen.lr * step).float(), after), found
