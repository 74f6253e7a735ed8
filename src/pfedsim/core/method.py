"""What a federated method is: hooks whose defaults average the clients' models, and the nouns that they
speak of.

A method is a frozen dataclass of hyper-parameters. It holds no state: hooks take state and return state,
change nothing that they were given, and draw randomness only from the generator handed to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan, TypeAdapter, ValidationError

from pfedsim.core.robust import Terms, defended
from pfedsim.core.rows import Rows, weighted_mean
from pfedsim.core.settings import Settings
from pfedsim.errors import Error, must

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from pfedsim.backends.base import AutogradNet
    from pfedsim.core.job import Batch, Job
    from pfedsim.core.layout import Layout

Share = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0), AllowInfNan(False)]
AtLeastZero = Annotated[float, Ge(0), AllowInfNan(False)]
Count = Annotated[int, Ge(1)]
Weights = Annotated[Literal["samples", "uniform"], "clients count by their train samples, or all alike"]


class Net(Protocol):
    """What a server may ask of the network."""

    def head(self, theta: Tensor, z: Tensor) -> Tensor: ...
    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Fed:
    """Public facts of the federation: no sample, label or size of any client. They pickle; `net` opens
    itself again where it is used."""

    clients: int
    classes: int
    layout: Layout
    net: Net
    initial: Tensor
    settings: Settings


@dataclass(frozen=True, eq=False)
class ServerState:
    """All that the server holds. The loop advances `round`, the number of finished rounds, `steps`: each
    client's longest accepted step, by which the guard judges later ones, and `moments`: those of the run's server
    optimiser."""

    round: int
    model: Tensor
    personal: Rows | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # each a Tensor, Rows or Pairs
    steps: Mapping[int, float] = field(default_factory=dict)
    moments: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Memory:
    """All that a client holds between its rounds. `kept`: its own values of the kept entries (None: never
    took part)."""

    kept: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Message:
    """Server to client. `models`: more models, one vector or several in rows; like `model` they travel
    without the entries that clients keep. `extra`: everything else."""

    task: str
    model: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    stage: str = ""
    models: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reply:
    """Client to server. `weight`: train samples. `models` and `extra` as in a message. `info` is for people,
    never for `aggregate`. `round` and `task`: what it answers, as `job.reply` fills in; another one is a replay."""

    client: int
    weight: float
    model: Tensor | None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    info: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[str, Tensor] = field(default_factory=dict)
    round: int = -1
    task: str = ""


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """Where local training starts; `notes` are for this job's other hooks. `predict`: class scores of a model and
    samples when it is scored (None: the network's own, `job.logits`)."""

    theta: Tensor
    notes: Mapping[str, Any] = field(default_factory=dict)
    predict: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Phase:
    """A stretch of local SGD: which entries move, for how long, how fast; `batches` per step; `start`: not
    from where the last ended. Models in the rows of `start` step side by side: `gradient` gets and gives rows."""

    train: Tensor
    epochs: int
    lr: float
    batches: int = 1
    start: Tensor | None = None


@dataclass(frozen=True)
class Method:
    """The hooks. Override what differs from plain averaging; fields are the method's options, checked when
    it is made."""

    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    elsewhere: ClassVar[str] = ""  # what other code bases get wrong about it
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # named sets of options
    search: ClassVar[Mapping[str, Sequence[Any]]] = {}  # option -> values to try when it is tuned
    rate: ClassVar[str] = "lr"  # its learning rate, which tuning always varies: the run's, or an option
    beside: ClassVar[str] = (
        ""  # what predictions need beside the network: `StartingPoint.predict` asks for it
    )
    weights = "samples"
    validation = 0.0  # share of the train part held back: not trained on, not in weights or moments
    buffers = ""  # "shared": norm statistics are averaged, whatever the run's setting
    tunes = "score"  # the task that asks for the model which the second score tunes: the served one
    last = ""  # a task that every client is asked once more, after the last round

    # on the server

    def init(self, fed: Fed, theta: Tensor, rng: torch.Generator) -> ServerState:
        """The server before the first round."""
        return ServerState(0, theta)

    def plan(self, fed: Fed, server: ServerState, sampled: Sequence[int]) -> tuple[str, Sequence[int]]:
        """The next wave's task and clients; asked again until the task is "train", which ends the round."""
        return "train", sampled

    def send(self, fed: Fed, server: ServerState, clients: Sequence[int], task: str) -> dict[int, Message]:
        """What each client of a wave is sent; task "score" asks for the model that would be used now."""
        return {i: Message(task, server.model) for i in clients}

    def aggregate(
        self, fed: Fed, server: ServerState, task: str, replies: Sequence[Reply], rng: torch.Generator
    ) -> ServerState:
        """The server after a wave; replies come sorted by client. To "train" there is at least one, to
        another task perhaps none."""
        return replace(server, model=self.mean(fed, server, replies))

    # at the client

    def keeps(self, layout: Layout) -> Tensor:
        """Mask of the entries that never leave the client."""
        return layout.head & False

    def begin(self, job: Job) -> StartingPoint:
        """The model that training or scoring starts from."""
        return StartingPoint(job.mine(job.message.model))

    def phases(self, job: Job) -> list[Phase]:
        """What is trained; nothing when the task is "score"."""
        if job.message.task != "train":
            return []
        return [Phase(job.fed.layout.trainable, job.fed.settings.epochs, job.fed.settings.lr)]

    def loss(self, job: Job, net: AutogradNet, batch: Batch) -> Tensor:
        """What a step descends, written for autograd; torch backend only. A method that has it needs no gradient."""
        from torch.nn import functional as F

        return F.cross_entropy(net(batch.x), batch.y)

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        """The direction of one step: of `loss` where the method has its own, else of the cross-entropy."""
        if self.autograd():
            return job.grad_of(theta, batches[0], self.loss)
        return job.grad(theta, batches[0])

    def finish(self, job: Job, ends: Sequence[Tensor]) -> tuple[Reply, Memory]:
        """What is sent back and what the client remembers; `ends`: the model after each phase."""
        return job.reply(ends[-1]), job.remember(ends[-1])

    def replies(self, fed: Fed, message: Message) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that must answer this message."""
        return {"model": (fed.layout.size,)}

    # not hooks

    def mean(self, fed: Fed, server: ServerState, replies: Sequence[Reply]) -> Tensor:
        """The replies' models averaged as `weights` says, or by the robust mean that the run asks for; norm
        statistics, where they travel, always by train samples."""
        models: Terms = [(r.weight, r.model) for r in replies if r.model is not None]
        if fed.settings.defence is not None:
            models = defended(fed.settings.defence, server.model, models)
        by_samples = weighted_mean(models)
        if self.weights == "samples":
            return by_samples
        return by_samples.where(fed.layout.buffers, weighted_mean((1.0, model) for _, model in models))

    def network(self, net: nn.Module, head: str) -> nn.Module:
        """The run's network, or what the method makes of it: whatever parameters it adds are entries of every model.
        `head`: the name of the classifier's attribute, which must keep it."""
        return net

    def plain(self, job: Job) -> bool:
        """Whether `gradient` and `loss` are left alone, so that a backend may run a whole phase in one call."""
        return type(self).gradient is Method.gradient and not self.autograd()

    def autograd(self) -> bool:
        """Whether the method has a `loss` of its own, which only the torch backend can differentiate."""
        return type(self).loss is not Method.loss

    def reshapes(self) -> bool:
        """Whether the method has a `network` of its own."""
        return type(self).network is not Method.network

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for option in fields(self):
            try:
                value = TypeAdapter(hints[option.name]).validate_python(getattr(self, option.name))
            except ValidationError as error:
                said = must(error.errors()[0])
                raise Error(f"{type(self).__name__.lower()}.{option.name} = {said}") from None
            object.__setattr__(self, option.name, value)
