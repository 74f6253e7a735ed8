"""What a client's hooks see of their work: facts to read and the backend's verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pfedsim.method import Client, Fed, Message, Method, Phase, Reply, Start
from pfedsim.seeds import generator

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.backends.torch import TorchNet
    from pfedsim.federation import Samples


Carrier = TypeVar("Carrier", Message, Client)


class Batch(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Site:
    """What all jobs of a run share at the place where they run."""

    method: Method
    fed: Fed
    net: TorchNet
    samples: Samples
    kept: Tensor  # mask of what never leaves a client: the method's and, with buffers = local, the norm statistics


class Work(NamedTuple):
    """One client's part of a wave: all that an engine must carry to where it runs."""

    client: int
    round: int
    message: Message
    memory: Client
    purpose: str  # addresses the random draws


class Job:
    """What a client's hooks see of their work: facts to read and the backend's verbs."""

    def __init__(self, site: Site, work: Work):
        self._site, self._net = site, site.net
        self.fed, self.client, self.round = site.fed, work.client, work.round
        self.message, self.memory = _moved(work.message, site.net.device), _moved(work.memory, site.net.device)
        self.start: Start
        self.phase: Phase
        self.steps = 0
        self.rng = generator(site.fed.settings.seed, work.purpose, work.round, work.client)
        self._order = generator(site.fed.settings.seed, f"{work.purpose}/order", work.round, work.client)
        self._parts: dict[str, Batch] = {}
        self._statistics: Tensor | None = None
        self._losses: list[float] = []

    @property
    def labels(self) -> Tensor:
        """The labels of this client's train part."""
        return self.part("train").y

    def part(self, name: str) -> Batch:
        """All of "train" or "validation" as ready tensors, in stored order."""
        if name not in self._parts:
            held_back = max(self._site.method.validation, self.fed.settings.validation)
            x, y = self._site.samples.part(self.client, name, held_back)
            self._parts[name] = Batch(self._net.ready(x), y.to(self._net.device))
        return self._parts[name]

    def mine(self, model: Tensor) -> Tensor:
        """`model` with the kept entries replaced by this client's own (never took part: the initial ones)."""
        own = self.fed.initial[self._site.kept] if self.memory.kept is None else self.memory.kept
        return model.masked_scatter(self._site.kept, own)

    def batches(self, share: float = 1.0) -> list[Batch]:
        """One seeded pass over a share of the train part, for begin and finish."""
        import torch

        x, y = self.part("train")
        order = torch.randperm(len(y), generator=self.rng)[: max(2, round(share * len(y)))]
        return self._slices(Batch(x[order], y[order]))

    def grad(self, theta: Tensor, batch: Batch, targets: Tensor | None = None,
             at_features: Callable[[Tensor], Tensor] | None = None) -> Tensor:  # fmt: skip
        """Gradient of the mean cross-entropy in train mode, by labels or soft `targets`; `at_features`: given the head's input,
        an extra gradient there. Moves the job's norm statistics, whatever `theta` holds."""
        if self._statistics is None:
            self._statistics = self.mine(self.message.model)[self.fed.layout.buffers]
        want = batch.y if targets is None else targets
        gradient, self._statistics, loss = self._net.grad(theta, self._statistics, batch.x, want, at_features)
        self._losses.append(loss)
        return gradient

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._net.logits(theta, x)

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._net.features(theta, x)

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        return self._net.head(theta, z)

    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._net.head_grad(theta, z, targets)

    def loss_on(self, theta: Tensor, part: str) -> float:
        """Mean loss in eval mode on "train" or "validation"."""
        return self._net.loss(theta, *self.part(part))

    def moments(self, theta: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Count, mean and variance per channel at each norm layer's input, in eval mode, over the train part."""
        return self._net.moments(theta, self.part("train").x)

    def reply(self, model: Tensor | None, **extra: Tensor) -> Reply:
        """A reply that weighs as much as this client's train part."""
        info = {"loss": sum(self._losses) / len(self._losses)} if self._losses else {}
        return Reply(self.client, float(len(self.labels)), model, extra, info)

    def remember(self, theta: Tensor, **extra: Tensor) -> Client:
        """What stays: the kept entries of `theta`, and `extra` beside what was remembered before."""
        return Client(theta[self._site.kept], {**self.memory.extra, **extra})

    def passes(self, phase: Phase) -> Iterator[list[Batch]]:
        """The batches of each step of a phase."""
        import torch

        settings = self.fed.settings
        x, y = self.part("train")
        steps = max(1, settings.local_steps * phase.epochs // settings.epochs) if settings.local_steps else None

        def steps_of_epochs() -> Iterator[list[Batch]]:
            for _ in range(phase.epochs) if steps is None else count():
                order = torch.randperm(len(y), generator=self._order) if settings.shuffle else None
                batches = self._slices(Batch(x, y) if order is None else Batch(x[order], y[order]))
                if not batches:
                    return
                while len(batches) < phase.batches:
                    batches.append(batches[0])
                for first in range(0, len(batches) - phase.batches + 1, phase.batches):
                    yield batches[first : first + phase.batches]

        return islice(steps_of_epochs(), steps)

    def _slices(self, data: Batch) -> list[Batch]:
        size = self.fed.settings.batch
        slices = [Batch(data.x[k : k + size], data.y[k : k + size]) for k in range(0, len(data.y), size)]
        return [batch for batch in slices if len(batch.y) > 1]  # norm layers have no variance of one sample


def _moved(carrier: Carrier, device: torch.device) -> Carrier:
    """The same with its tensors where the network is."""
    if device.type == "cpu":
        return carrier
    own: dict[str, Any] = {"model": carrier.model.to(device)} if isinstance(carrier, Message) else {}
    if isinstance(carrier, Client) and carrier.kept is not None:
        own = {"kept": carrier.kept.to(device)}
    return replace(carrier, extra={name: t.to(device) for name, t in carrier.extra.items()}, **own)
