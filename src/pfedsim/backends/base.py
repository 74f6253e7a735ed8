"""What every backend can do: a network as functions of its flat vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Recipe(Protocol):
    """How a network is made again."""

    def open(self) -> Backend: ...


class Reopened:
    """Pickles as its recipe: what holds a network can go to another machine, where it is made again."""

    recipe: Recipe | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.recipe is None:
            raise TypeError(
                f"this {type(self).__name__} was made without a recipe, so it cannot be pickled"
            )
        return _open, (self.recipe,)


def _open(recipe: Recipe) -> Backend:
    return recipe.open()


class AutogradNet(Protocol):
    """The network in train mode at the model that a step starts from, for a loss that autograd differentiates."""

    module: nn.Module
    """the network itself; its parameters are leaves of the graph"""
    head: Any
    """its classifier: called with features it gives the class scores"""

    def __call__(self, x: Tensor) -> Tensor:
        """Class scores."""

    def features(self, x: Tensor) -> Tensor:
        """The head's input."""


class Backend(Protocol):
    """The verbs. Train-mode verbs take the norm statistics beside the model and return those that follow;
    eval-mode verbs use the statistics inside the vector."""

    recipe: Recipe | None
    device: torch.device
    kernels: str
    """which native kernels run; "" where none do"""

    def ready(self, x: Tensor) -> Tensor:
        """Stored samples as the network takes them: bytes to 0..1, then the set's mean and deviation."""

    def grad(
        self,
        theta: Tensor,
        statistics: Tensor,
        x: Tensor,
        targets: Tensor,
        at_features: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, float]:
        """Gradient of the mean cross-entropy in train mode, the statistics that follow, and the loss."""

    def grad_of(
        self, theta: Tensor, statistics: Tensor, loss: Callable[[AutogradNet], Tensor]
    ) -> tuple[Tensor, Tensor, float]:
        """The same of any loss of the network, by autograd."""

    def descend(
        self,
        theta: Tensor,
        statistics: Tensor,
        x: Tensor,
        y: Tensor,
        steps: Sequence[Tensor],
        lr: float,
        moves: Tensor,
        momentum: float = 0.0,
        decay: float = 0.0,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, list[float]]:
        """A whole phase of SGD: `steps` holds each step's sample numbers, `moves` what is trained; `augment` is asked
        step by step for what is trained on in place of its samples. The model, the statistics and each step's loss,
        with the bits of `grad` and the update of `client.train`."""

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class scores in eval mode."""

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """The head's input in eval mode."""

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The classifier's scores for features `z`, in eval mode."""

    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the classifier's mean cross-entropy at features `z`: by `theta` and by `z`."""

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> float:
        """Mean cross-entropy in eval mode."""

    def moments(self, theta: Tensor, x: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Count, mean and population variance per channel at each norm layer's input, in eval mode."""
