"""What travels between the hub and its sites: the only statement of it. Plain facts and named arrays, nothing that
executes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pfedsim import memory
from pfedsim.core.engine import Absent, Done
from pfedsim.core.job import ScoreRequest, Work
from pfedsim.core.method import Memory, Message, Reply
from pfedsim.core.scoring import METRICS, ClientScore
from pfedsim.core.wire import Wire
from pfedsim.durable import Bytes
from pfedsim.sites.packet import Malformed, opened, packed

if TYPE_CHECKING:
    from torch import Tensor

PROTOCOL = "pfedsim sites 1"
LONGEST = 500  # characters of a reason
ROWS = 100_000  # models that one tensor may hold
Mark = Annotated[str, Field(pattern=r"^\d{5,10}-[0-9a-f]{24}$")]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
Client = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Said = Annotated[str, Field(max_length=LONGEST)]


class Facts(BaseModel):
    """Facts have known names and types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class Carried(Facts):
    """A message's or reply's tensors, each by the name of the tensor in the packet."""

    model: str | None = None
    models: dict[str, str] = {}
    extra: dict[str, str] = {}


class Asked(Facts):
    """One client's part of a wave. `base`: the mark of the memory to start from, empty before the first. `keep`: marks
    to which the run may come back."""

    client: Client
    round: Count
    purpose: Name
    task: Name
    stage: str = ""
    carried: Carried
    base: Mark | Literal[""] = ""
    keep: list[Mark] = []
    split: Literal["test", "validation"] = "test"
    finetune: Count = 0
    lr: float | None = None
    stays: bool = False


class Answered(Facts):
    """One client's answer: a reply with the mark of the memory that came with it, a score, or why there is none."""

    client: Client
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    flaw: Said = ""
    mark: Mark | None = None
    says: Client | None = None
    weight: float = 0.0
    round: int = -1
    task: str = ""
    info: dict[str, float] = {}
    carried: Carried | None = None
    samples: Count | None = None
    metrics: dict[str, float] = {}
    confusion: str = ""
    why: Said | None = None
    failed: bool = False


class Opening(Facts):
    """What a site needs to open a run: the configuration, the task, and what the hub was made with."""

    kind: Literal["open"] = "open"
    config: dict[str, Any]
    data: dict[str, Any]
    clients: Count
    unseen: Count = 0
    made_with: dict[str, Any]
    allow_drift: bool = False


class Opened(Facts):
    """The site is ready. `sizes`: how many train samples its clients hold. `notes`: how it differs from the hub."""

    kind: Literal["opened"] = "opened"
    sizes: dict[Client, Count]
    notes: list[Said] = []


class Wave(Facts):
    """Work for a site's clients. `seconds`: how long the hub waits."""

    kind: Literal["work"] = "work"
    what: Literal["train", "score"]
    seconds: float | None = None
    works: list[Asked]


class Results(Facts):
    """The answers of a site's clients."""

    kind: Literal["results"] = "results"
    answers: list[Answered]


class Refusal(Facts):
    """The site cannot do what it was asked."""

    kind: Literal["refusal"] = "refusal"
    why: Said


Body = Annotated[Opening | Opened | Wave | Results | Refusal, Field(discriminator="kind")]


class Envelope(Facts):
    """Around everything that travels: which run, which site, and which request is asked or answered."""

    protocol: Literal["pfedsim sites 1"] = "pfedsim sites 1"
    run: Id
    site: Name
    request: Id
    body: Body


Kind = TypeVar("Kind", bound=Facts)


def sealed(envelope: Envelope, tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes that travel."""
    return b"".join(packed(envelope.model_dump_json().encode(), tensors))


def unsealed(data: bytes, limit: int | None = None) -> tuple[Envelope, dict[str, Tensor]]:
    """What has arrived; raises Malformed."""
    facts, tensors = opened(data, limit)
    return parsed(Envelope, facts), tensors


def parsed(kind: type[Kind], facts: bytes) -> Kind:
    """Facts of this kind; raises Malformed with what is wrong."""
    try:
        return TypeAdapter(kind).validate_json(facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Malformed(f"it says something else than it may: {place}: {first['msg']}"[:LONGEST]) from error


class Packer:
    """Collects tensors under names; one that several messages share goes once."""

    def __init__(self, wire: Wire):
        self._wire = wire
        self._names: dict[tuple[int, bool], str] = {}
        self._same: list[Tensor] = []  # alive, so that no other gets the same id
        self.tensors: dict[str, Tensor] = {}

    def model(self, tensor: Tensor) -> str:
        """A model, which goes without the entries that clients keep."""
        return self._put(tensor, True)

    def plain(self, tensor: Tensor) -> str:
        """Any other tensor, which goes as it is."""
        return self._put(tensor, False)

    def carried(self, it: Message | Reply) -> Carried:
        """The names of what a message or reply carries."""
        return Carried(
            model=None if it.model is None else self.model(it.model),
            models={name: self.model(tensor) for name, tensor in it.models.items()},
            extra={name: self.plain(tensor) for name, tensor in it.extra.items()},
        )

    def _put(self, tensor: Tensor, is_model: bool) -> str:
        key = id(tensor), is_model
        if key not in self._names:
            self._names[key] = f"t{len(self._names)}"
            self._same.append(tensor)
            part = self._wire.part_that_travels(tensor) if is_model else tensor
            self.tensors[self._names[key]] = part.detach().cpu()
        return self._names[key]


class Unpacker:
    """The tensors of a packet by the names in its facts. A tensor that several clients share is made once."""

    def __init__(self, wire: Wire, tensors: Mapping[str, Tensor]):
        self._wire, self._tensors = wire, tensors
        self._models: dict[str, Tensor] = {}

    def plain(self, name: str) -> Tensor:
        """A tensor as it came."""
        if name not in self._tensors:
            raise Malformed(f"it names a tensor {name!r:.40} that it does not bring")
        return self._tensors[name]

    def model(self, name: str) -> Tensor:
        """A sealed model of what came of it."""
        if name not in self._models:
            part, travels = self.plain(name), self._wire.travels
            rows = part.shape[0] if part.ndim == 2 else 1
            if part.ndim not in (1, 2) or part.shape[-1] != travels or rows > ROWS:
                raise Malformed(
                    f"a model has shape {tuple(part.shape)}, expected rows of {travels} entries"
                )
            if not part.is_floating_point():
                raise Malformed(f"a model holds {part.dtype}, expected float32")
            memory.need("a model", rows * self._wire.size * part.element_size())
            self._models[name] = self._wire.with_gaps(part)
        return self._models[name]

    def _each(self, names: Mapping[str, str], how: Callable[[str], Tensor]) -> dict[str, Tensor]:
        return {name: how(tensor) for name, tensor in names.items()}

    def message(self, asked: Asked) -> Message:
        """The message to one client."""
        it = asked.carried
        if it.model is None:
            raise Malformed("it holds a message without a model")
        model, models = self.model(it.model), self._each(it.models, self.model)
        return Message(asked.task, model, self._each(it.extra, self.plain), asked.stage, models)

    def reply(self, answer: Answered) -> Reply:
        """A client's reply, as it says."""
        it = answer.carried
        if it is None or answer.says is None:
            raise Malformed("it holds no reply")
        model = None if it.model is None else self.model(it.model)
        models = self._each(it.models, self.model)
        extra = self._each(it.extra, self.plain)
        info = dict(answer.info)
        return Reply(answer.says, answer.weight, model, extra, info, models, answer.round, answer.task)

    def score(self, answer: Answered, classes: int) -> ClientScore:
        """A client's score: counts and sums."""
        if answer.samples is None or set(answer.metrics) != set(METRICS):
            raise Malformed("it holds no score")
        confusion = self.plain(answer.confusion).numpy()
        if confusion.dtype != np.int64 or confusion.shape != (classes, classes):
            raise Malformed(
                f"a confusion matrix has shape {confusion.shape}, expected {(classes, classes)}"
            )
        if (confusion < 0).any() or int(confusion.sum()) != answer.samples:
            raise Malformed(f"a confusion matrix does not count {answer.samples} samples")
        return ClientScore(answer.client, answer.samples, dict(answer.metrics), confusion)


def asked(packer: Packer, work: Work, base: str, keep: Iterable[str]) -> Asked:
    """One client's work as facts."""
    request = work.score or ScoreRequest()
    return Asked(
        client=work.client,
        round=work.round,
        purpose=work.purpose,
        task=work.message.task,
        stage=work.message.stage,
        carried=packer.carried(work.message),
        base=base,
        keep=sorted(keep),
        split=request.split,  # type: ignore[arg-type]
        finetune=request.finetune,
        lr=request.lr,
        stays=request.stays,
    )


def work_of(unpacker: Unpacker, it: Asked, what: str) -> Work:
    """The inverse of `asked`."""
    request = ScoreRequest(it.split, it.finetune, lr=it.lr, stays=it.stays) if what == "score" else None
    return Work(it.client, it.round, unpacker.message(it), it.purpose, request)


def answered(packer: Packer, done: Done | Absent, mark: str | None) -> Answered:
    """A client's result as facts. Models, labels and predictions of a score are never among them."""
    if isinstance(done, Absent):
        return Answered(client=done.client, why=done.why[:LONGEST], failed=bool(done.trace))
    result = done.result
    if isinstance(result, ClientScore):
        import torch

        return Answered(
            client=done.client,
            seconds=done.seconds,
            cpu_seconds=done.cpu_seconds,
            samples=result.samples,
            metrics=dict(result.metrics),
            confusion=packer.plain(torch.from_numpy(result.confusion)),
        )
    return Answered(
        client=done.client,
        seconds=done.seconds,
        cpu_seconds=done.cpu_seconds,
        flaw=done.flaw[:LONGEST],
        mark=mark,
        says=result.client,
        weight=result.weight,
        round=result.round,
        task=result.task,
        info=dict(result.info),
        carried=packer.carried(result),
    )


class Kept(Facts):
    """A client's memory with the answer that came with it, as a site's disk holds them."""

    run: Id
    mark: Mark
    answer: Answered
    kept: str | None = None
    remembered: dict[str, str] = {}


def kept(wire: Wire, run: str, mark: str, done: Done, held: Memory) -> list[Bytes]:
    """The packet for the disk."""
    packer = Packer(wire)
    facts = Kept(
        run=run,
        mark=mark,
        answer=answered(packer, done, mark),
        kept=None if held.kept is None else packer.plain(held.kept),
        remembered={name: packer.plain(tensor) for name, tensor in held.extra.items()},
    )
    return packed(facts.model_dump_json().encode(), packer.tensors)


def unkept(wire: Wire, data: bytes) -> tuple[Kept, Memory, Done]:
    """The inverse of `kept`."""
    facts, tensors = opened(data)
    it, unpacker = parsed(Kept, facts), Unpacker(wire, tensors)
    extra = {name: unpacker.plain(tensor) for name, tensor in it.remembered.items()}
    held = Memory(None if it.kept is None else unpacker.plain(it.kept), extra)
    answer = it.answer
    times = answer.seconds, answer.cpu_seconds
    return it, held, Done(answer.client, unpacker.reply(answer), *times, answer.flaw)


def mark_of(run: str, opening: str, it: Asked, digests: Mapping[str, str]) -> str:
    """The mark of the memory that this work makes: it depends on all that decides the work, so equal work is known
    again. `opening`: the digest of what opened the run; `digests`: of the tensors by name."""
    carried = it.carried
    what = {
        "run": run,
        "opening": opening,
        "work": it.model_dump(mode="json", exclude={"carried", "keep"}),
        "model": digests.get(carried.model or ""),
        "models": {name: digests.get(tensor) for name, tensor in carried.models.items()},
        "extra": {name: digests.get(tensor) for name, tensor in carried.extra.items()},
    }
    text = json.dumps(what, sort_keys=True).encode()
    return f"{it.round:05d}-{hashlib.sha256(text).hexdigest()[:24]}"


def digest_of(tensor: Tensor) -> str:
    """sha256 of a tensor's type, shape and values."""
    import torch

    whole = tensor.contiguous()
    h = hashlib.sha256(f"{whole.dtype}{tuple(whole.shape)}".encode())
    if whole.numel():
        h.update(whole.reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()
