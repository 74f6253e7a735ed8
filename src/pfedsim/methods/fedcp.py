"""FedCP. Zhang et al., FedCP: Separating feature information for personalized federated learning via conditional
policy, KDD 2023 (arXiv 2307.01217)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import AtLeastZero, Memory, Method, Phase, Reply, StartingPoint, Weights

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pfedsim.backends.base import AutogradNet
    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout

BANDWIDTHS = (10, 15, 20, 50)  # of the kernels, as in the authors' code


@dataclass(frozen=True)
class FedCP(Method):
    """FedAvg of the body and of a small network, the policy, which splits every sample's features between a frozen
    common head and the client's own. Features are held near those of the received body."""

    title = "FedCP"
    paper = (
        "Zhang et al. 2023, section 4; lam = 5 as in the authors' run_me.sh, kernels and the head that is sent, the "
        "mean of own and common, as in their code"
    )
    elsewhere = (
        "The authors' code adds Gumbel noise to the policy in training and when it predicts, where the paper has a "
        "plain softmax, so its scores differ from call to call. A client's context is random until it has trained. "
        "One library sends the new common head only to the clients of the round."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.1, 1.0, 5.0)}

    weights: Weights = "samples"
    lam: Annotated[
        AtLeastZero, "strength of the pull of features to those of the received body (lambda)"
    ] = 5.0

    def network(self, net: nn.Module, head: str) -> nn.Module:
        from pfedsim.methods.heads import Separated

        setattr(net, head, Separated(net.get_submodule(head)))
        return net

    def keeps(self, layout: Layout) -> Tensor:
        from pfedsim.methods.heads import inside

        return inside(layout, "own") | inside(layout, "context")

    def begin(self, job: Job) -> StartingPoint:
        """The context is v / |v|, where v sums the rows of the own head's weight (of the product of its weights)."""
        from pfedsim.methods.heads import name

        theta, layout = job.mine(job.message.model).clone(), job.fed.layout
        v = theta.new_ones(1, job.fed.classes)
        for weight in reversed(
            [t for n, t in layout.named(theta).items() if n.startswith(name(layout, "own."))]
        ):
            v = v @ weight if weight.ndim == 2 else v
        layout.view(theta, name(layout, "context.v")).copy_(v[0] / v.norm().clamp(min=1e-12))
        return StartingPoint(theta)

    def phases(self, job: Job) -> list[Phase]:
        from pfedsim.methods.heads import inside

        layout, settings = job.fed.layout, job.fed.settings
        if job.message.task != "train":
            return []
        return [Phase(layout.trainable & ~inside(layout, "common"), settings.epochs, settings.lr)]

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        z = net.features(batch.x)
        return cross_entropy(net.head(z), batch.y) + self.lam * discrepancy(
            z, job.features(job.start.theta, batch.x)
        )

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        from pfedsim.methods.heads import inside

        model, layout = ends[-1].clone(), job.fed.layout
        own, common = (inside(layout, part) for part in ("own", "common"))
        model[common] = (model[own] + model[common]) / 2
        return job.reply(model), job.remember(ends[-1])


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two batches, with a sum of Gaussian kernels."""

    def similar(x: Tensor, y: Tensor) -> Tensor:
        apart = (x[:, None] - y[None]).square().sum(2)
        kernels = [(-apart / (2 * width)).exp().mean() for width in BANDWIDTHS]
        return sum(kernels[1:], kernels[0])

    return similar(a, a) + similar(b, b) - 2 * similar(a, b)
