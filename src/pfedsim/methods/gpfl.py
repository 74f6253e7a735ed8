"""GPFL. Zhang et al., GPFL: Simultaneously learning global and personalized feature information for personalized
federated learning, ICCV 2023 (arXiv 2308.10279)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pfedsim.core.method import AtLeastZero, Method, StartingPoint, Weights

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pfedsim.backends.base import AutogradNet
    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout


@dataclass(frozen=True)
class GPFL(Method):
    """FedAvg of all but the head. Features pass a common valve twice: set by the mean of the class embeddings, they are
    drawn to their class's embedding; set by the mean over the client's labels, they go to the client's own head."""

    title = "GPFL"
    paper = (
        "Zhang et al. 2023, section 3; lam and mu for the CNN of four layers as in the authors' run_me.sh, where "
        "ResNet-18 has lam = 0.0001 and mu = 0"
    )
    elsewhere = (
        "The authors' code computes both conditions from the client's old embeddings, before it loads the received "
        "ones, and from zeros in the first round. Its distance to the embeddings is one norm over the whole batch, "
        "so that its weight depends on the batch size; here it is the mean of the samples' distances."
    )
    search: ClassVar[Mapping[str, Sequence[Any]]] = {"lam": (0.0001, 0.01, 0.1), "mu": (0.0, 0.1)}

    weights: Weights = "samples"
    lam: Annotated[AtLeastZero, "weight of the distance to the class's embedding (lambda)"] = 0.01
    mu: Annotated[AtLeastZero, "weight decay of valve and embeddings"] = 0.1

    def network(self, net: nn.Module, head: str) -> nn.Module:
        from pfedsim.methods.heads import Valved

        setattr(net, head, Valved(net.get_submodule(head)))
        return net

    def keeps(self, layout: Layout) -> Tensor:
        from pfedsim.methods.heads import inside

        return inside(layout, "own") | inside(layout, "condition")

    def begin(self, job: Job) -> StartingPoint:
        """Both conditions: the mean of the received embeddings, and their mean over the client's labels."""
        from pfedsim.methods.heads import name

        theta, layout = job.mine(job.message.model).clone(), job.fed.layout
        embeddings = layout.view(theta, name(layout, "embeddings.weight")).clone()
        counts = job.labels.bincount(minlength=job.fed.classes).to(theta.dtype)
        own = counts @ embeddings / counts.sum().clamp(min=1)
        layout.view(theta, name(layout, "condition.v")).copy_(own)
        return StartingPoint(theta, {"generic": embeddings.mean(0), "embeddings": embeddings})

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy, normalize

        head, notes, z = net.head, job.start.notes, net.features(batch.x)
        personal = cross_entropy(head(z), batch.y)
        guided = head.valve(z, notes["generic"])
        angle = cross_entropy(normalize(guided) @ normalize(head.embeddings.weight).T, batch.y)
        magnitude = (guided - notes["embeddings"][batch.y]).norm(dim=1).mean()
        shared = [p for part in (head.gamma, head.beta, head.embeddings) for p in part.parameters()]
        decay = sum(p.square().sum() for p in shared)
        total: Tensor = personal + angle + self.lam * magnitude + self.mu / 2 * decay
        return total
