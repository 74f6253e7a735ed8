"""FedGen's generator of features and its training step. Its state is a set of named tensors that the server can
keep and send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

State = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Generator:
    """G(noise, y): linear, batch norm, ReLU, linear. One vector `g` holds its weights, another the norm
    `statistics`."""

    classes: int
    noise: int
    hidden: int
    features: int

    def start(self, rng: torch.Generator) -> dict[str, Tensor]:
        """The initial state: torch's default weights, and Adam's state at zero."""
        import torch

        def linear(fan_in: int, out: int) -> Tensor:  # weight and bias
            return torch.empty((fan_in + 1) * out).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=rng)

        zeros, ones = torch.zeros(self.hidden), torch.ones(self.hidden)
        g = torch.cat(
            [
                linear(self.noise + self.classes, self.hidden),
                ones,
                zeros,
                linear(self.hidden, self.features),
            ]
        )
        still = torch.zeros((), dtype=torch.float64)
        return {
            "g": g,
            "statistics": torch.cat([zeros, ones]),
            "adam": torch.zeros(2, len(g)),
            "adam_steps": still,
        }

    def __call__(self, state: State, y: Tensor, rng: torch.Generator) -> Tensor:
        """Features of these classes, in eval mode."""
        return self._forward(state["g"], state["statistics"], y, rng, training=False)[0]

    def step(
        self,
        state: State,
        y: Tensor,
        rng: torch.Generator,
        by_features: Callable[[Tensor], Tensor],
        lr: float,
    ) -> dict[str, Tensor]:
        """The state after one step of Adam; `by_features` is the gradient of the loss by the features."""
        import torch

        g = state["g"].detach().requires_grad_()
        z, statistics = self._forward(g, state["statistics"], y, rng, training=True)
        (by_g,) = torch.autograd.grad(z, g, by_features(z.detach()))
        first, second = 0.9 * state["adam"][0] + 0.1 * by_g, 0.999 * state["adam"][1] + 0.001 * by_g**2
        k = state["adam_steps"] + 1
        direction = (first / (1 - 0.9**k)) / ((second / (1 - 0.999**k)).sqrt() + 1e-8)
        return {
            "g": g.detach() - lr * direction,
            "statistics": statistics,
            "adam": torch.stack([first, second]),
            "adam_steps": k,
        }

    def _forward(
        self, g: Tensor, statistics: Tensor, y: Tensor, rng: torch.Generator, training: bool
    ) -> tuple[Tensor, Tensor]:
        """The features and the updated norm statistics."""
        import torch
        from torch.nn import functional as F

        width, h = self.noise + self.classes, self.hidden
        w1, b1, scale, shift, w2, b2 = torch.split(
            g, [h * width, h, h, h, self.features * h, self.features]
        )
        noise = torch.randn(len(y), self.noise, generator=rng).to(g)
        inputs = torch.cat([noise, F.one_hot(y, self.classes).to(g)], 1)
        mean, variance = torch.split(statistics.clone(), h)
        inner = F.batch_norm(
            F.linear(inputs, w1.view(h, width), b1), mean, variance, scale, shift, training
        )
        return F.linear(inner.relu(), w2.view(self.features, h), b2), torch.cat([mean, variance])
