"""What a client's hooks see of their work: facts to read and the backend's verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pfedsim.core.augment import augmented
from pfedsim.core.method import Fed, Memory, Message, Method, Phase, Reply, StartingPoint
from pfedsim.core.seeds import generator
from pfedsim.core.wire import Wire
from pfedsim.errors import Unreadable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pfedsim.backends.base import AutogradNet, Backend
    from pfedsim.data.federation import ClientData

    Loss = Callable[["Job", AutogradNet, "Batch"], Tensor]

Carrier = TypeVar("Carrier", Message, Memory)


class Batch(NamedTuple):
    """Samples as the network takes them, and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Worker:
    """What all jobs of a run share at the place where they run. `simulated`: whoever asks may see labels,
    predictions and models of these clients; elsewhere their scores leave as counts and sums alone."""

    method: Method
    fed: Fed
    net: Backend
    samples: ClientData
    wire: Wire
    simulated: bool = False

    @property
    def validation(self) -> float:
        """Share of a client's train part that is held back."""
        return max(self.method.validation, self.fed.settings.validation)


class ScoreRequest(NamedTuple):
    """What is asked of a client's score: on which part of its data, after how many plain local epochs (at which
    learning rate; None: the next round's), and whether its model, labels and predictions come along (from
    simulated clients only). `stays`: it is the client's final model, which a client elsewhere keeps for itself."""

    split: str = "test"
    finetune: int = 0
    model: bool = False
    predictions: bool = False
    lr: float | None = None
    stays: bool = False


class Work(NamedTuple):
    """One client's part of a wave: all that an engine must carry to the client."""

    client: int
    round: int
    message: Message
    purpose: str  # addresses the random draws
    score: ScoreRequest | None = None


def samples_of(worker: Worker, client: int, part: str) -> tuple[Tensor, Tensor]:
    """This client's samples and labels of "train", "validation" or "test", as stored."""
    try:
        return worker.samples.part(client, part, worker.validation)
    except Exception as error:
        raise Unreadable(f"its {part} data cannot be read: {type(error).__name__}: {error}") from error


class Job:
    """What a client's hooks see of their work: facts to read and the backend's verbs."""

    def __init__(self, worker: Worker, work: Work, memory: Memory):
        self._worker, self._net = worker, worker.net
        self.fed, self.client, self.round = worker.fed, work.client, work.round
        self.message, self.memory = _moved(work.message, self._net.device), _moved(memory, self._net.device)
        self.start: StartingPoint
        self.phase: Phase
        self.steps = 0
        self._pace = worker.fed.settings.pace(work.round)
        seed = worker.fed.settings.seed
        self.rng = generator(seed, work.purpose, work.round, work.client)
        self.draw_for(work.purpose)
        self._black: Tensor | None = None
        self._parts: dict[str, Batch] = {}
        self._statistics: Tensor | None = None
        self._losses: list[float] = []

    def draw_for(self, purpose: str) -> None:
        """From here on, the order of samples and their changes are drawn at this purpose's addresses."""
        self._purpose, seed = purpose, self.fed.settings.seed
        self._order = generator(seed, f"{purpose}/order", self.round, self.client)
        self._views = generator(seed, f"{purpose}/augment", self.round, self.client)

    @property
    def labels(self) -> Tensor:
        """The labels of this client's train part."""
        return self.part("train").y

    def part(self, name: str) -> Batch:
        """All of "train" or "validation" as ready tensors, in stored order."""
        if name not in self._parts:
            x, y = samples_of(self._worker, self.client, name)
            self._parts[name] = Batch(self._net.ready(x), y.to(self._net.device))
            if name == "train" and self.fed.settings.augment is not None and len(x):
                self._black = self._net.ready(x.new_zeros(1, *x.shape[1:]))[:, :, :1, :1]
        return self._parts[name]

    def mine(self, model: Tensor) -> Tensor:
        """`model` with the kept entries replaced by this client's own (never took part: the initial ones); itself
        where nothing is kept."""
        places = self._worker.wire.places
        if not len(places):
            return model
        own = self.fed.initial[places] if self.memory.kept is None else self.memory.kept
        return model.index_copy(0, places, own)

    def batches(self, share: float = 1.0) -> list[Batch]:
        """One seeded pass over a share of the train part, for begin and finish."""
        import torch

        count = len(self.labels)
        order = torch.randperm(count, generator=self.rng)[: max(2, round(share * count))]
        return [self._gathered(numbers) for numbers in self._slices(order)]

    def grad(
        self,
        theta: Tensor,
        batch: Batch,
        targets: Tensor | None = None,
        at_features: Callable[[Tensor], Tensor] | None = None,
        row: int | None = None,
    ) -> Tensor:
        """Gradient of the mean cross-entropy in train mode, by labels or soft `targets`; `at_features`: given
        the head's input, an extra gradient there. Moves the job's norm statistics, whatever `theta` holds: those of
        model `row`, where a phase trains several."""
        want = batch.y if targets is None else targets
        statistics = self._own_statistics()
        own = statistics if row is None else statistics[row]
        gradient, moved, loss = self._net.grad(theta, own, batch.x, want, at_features)
        self._statistics = moved
        if row is not None:
            self._statistics = statistics.clone()
            self._statistics[row] = moved
        self._losses.append(loss)
        return gradient

    def grad_of(self, theta: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """Gradient of `loss(job, net, batch)` by autograd, in train mode at `theta`; torch backend only. Moves the
        job's norm statistics."""
        gradient, self._statistics, value = self._net.grad_of(
            theta, self._own_statistics(), lambda net: loss(self, net, batch)
        )
        self._losses.append(value)
        return gradient

    def _own_statistics(self) -> Tensor:
        """Where the norm statistics of train mode stand."""
        if self._statistics is None:
            self._statistics = self.mine(self.message.model)[self.fed.layout.buffers]
        return self._statistics

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class scores in eval mode."""
        return self._net.logits(theta, x)

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """The head's input in eval mode."""
        return self._net.features(theta, x)

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The classifier's scores for features `z`, in eval mode."""
        return self._net.head(theta, z)

    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the classifier's mean cross-entropy at features `z`, by `theta` and by `z`."""
        return self._net.head_grad(theta, z, targets)

    def loss_on(self, theta: Tensor, part: str) -> float:
        """Mean loss in eval mode on "train" or "validation"."""
        return self._net.loss(theta, *self.part(part))

    def moments(self, theta: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Count, mean and variance per channel at each norm layer's input, in eval mode, over the train
        part."""
        return self._net.moments(theta, self.part("train").x)

    def reply(
        self, model: Tensor | None, *, models: Mapping[str, Tensor] | None = None, **extra: Tensor
    ) -> Reply:
        """A reply that weighs as much as this client's train part. `models`: more models, which like `model`
        travel without the entries that clients keep."""
        info = {"loss": sum(self._losses) / len(self._losses)} if self._losses else {}
        weight = float(len(self.labels))
        return Reply(self.client, weight, model, extra, info, models or {}, self.round, self._purpose)

    def remember(self, theta: Tensor, **extra: Tensor) -> Memory:
        """What stays: the kept entries of `theta`, and `extra` beside what was remembered before."""
        return Memory(theta[self._worker.wire.places], {**self.memory.extra, **extra})

    def descend(self, theta: Tensor, phase: Phase, moves: Tensor, lr: float) -> Tensor:
        """A whole phase of plain steps in one call, with the bits of the step-by-step path."""
        assert self._statistics is not None
        settings, (x, y) = self.fed.settings, self.part("train")
        steps = [numbers for (numbers,) in self.passes(phase)]
        theta, self._statistics, losses = self._net.descend(
            theta,
            self._statistics,
            x,
            y,
            steps,
            lr,
            moves,
            settings.momentum,
            settings.decay,
            None if settings.augment is None else self._augmented,
        )
        self._losses += losses
        self.steps += len(steps)
        return theta

    def batch(self, numbers: Tensor) -> Batch:
        """These samples of the train part for a step, augmented where the run asks for it; in stored order they are
        a view, not a copy."""
        x, y = self.part("train")
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == len(numbers) - 1 and not self.fed.settings.shuffle:
            found = Batch(x[first : last + 1], y[first : last + 1])
        else:
            found = self._gathered(numbers)
        return found if self.fed.settings.augment is None else Batch(self._augmented(found.x), found.y)

    def _augmented(self, x: Tensor) -> Tensor:
        """The images of one step as training sees them; steps draw one after another."""
        assert self.fed.settings.augment is not None
        assert self._black is not None
        return augmented(x, self.fed.settings.augment, self._black, self._views)

    def passes(self, phase: Phase) -> Iterator[list[Tensor]]:
        """The sample numbers of each step's batches in a phase."""
        import torch

        settings = self.fed.settings
        count = len(self.labels)
        by_steps = settings.local_steps and self._purpose == "train"  # scores count in epochs
        steps = max(1, settings.local_steps * phase.epochs // settings.epochs) if by_steps else None

        def steps_of_epochs() -> Iterator[list[Tensor]]:
            stored = self._slices(torch.arange(count))
            for _ in range(phase.epochs) if steps is None else repeat(None):
                batches = list(stored)
                if settings.shuffle:
                    batches = self._slices(torch.randperm(count, generator=self._order))
                if not batches:
                    return
                while len(batches) < phase.batches:
                    batches.append(batches[0])
                for first in range(0, len(batches) - phase.batches + 1, phase.batches):
                    yield batches[first : first + phase.batches]

        return islice(steps_of_epochs(), steps)

    def _gathered(self, numbers: Tensor) -> Batch:
        """These samples of the train part, copied; numbers are drawn on the CPU."""
        x, y = self.part("train")
        here = numbers.to(x.device)
        return Batch(x.index_select(0, here), y[here])

    def _slices(self, order: Tensor) -> list[Tensor]:
        """Batches of sample numbers; norm layers have no variance of one sample."""
        import torch

        return [numbers for numbers in torch.split(order, self.fed.settings.batch) if len(numbers) > 1]


def _moved(carrier: Carrier, device: torch.device) -> Carrier:
    """The same with its tensors where the network is."""
    if device.type == "cpu":
        return carrier
    own: dict[str, Any] = {"extra": {name: t.to(device) for name, t in carrier.extra.items()}}
    if isinstance(carrier, Message):
        own |= {"model": carrier.model.to(device)}
        own |= {"models": {name: t.to(device) for name, t in carrier.models.items()}}
    elif carrier.kept is not None:
        own |= {"kept": carrier.kept.to(device)}
    return replace(carrier, **own)
