"""Checks that any method must pass, for authors of methods: `pfedsim check mine.py:MyMethod`, or
`check(MyMethod())` in Python.

Each check runs the method through the real loops on a small federation made here and says in one sentence
what is wrong."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfedsim.core import scoring
from pfedsim.core.client import run_client
from pfedsim.core.engine import Absent, Done
from pfedsim.core.job import Job, Work, Worker
from pfedsim.core.method import Memory, Message, Method, Reply
from pfedsim.core.rows import Pairs, Rows
from pfedsim.core.server import REJECTED, State, last_wave
from pfedsim.core.wire import fields as fields_of
from pfedsim.data.dataset import DataSet
from pfedsim.data.federation import Federation
from pfedsim.data.partition import Partition, Split
from pfedsim.errors import HookError
from pfedsim.methods import parse, settings_of
from pfedsim.runs import config as configs
from pfedsim.runs.setup import Session, one_thread, prepare
from pfedsim.runs.state import from_tensors, to_tensors

CLASSES = 4
HOOKS = (
    *("init", "plan", "send", "aggregate", "keeps", "begin", "phases", "loss", "gradient", "finish"),
    "replies",
)


@dataclass(frozen=True)
class Result:
    """One check's outcome; `why` is empty where it passed."""

    name: str
    why: str


def check(method: Method) -> list[Result]:
    """Every check of this method."""
    results = []
    for name, run in CHECKS.items():
        try:
            with one_thread():
                run(method)
            results.append(Result(name, ""))
        except Exception as error:
            results.append(
                Result(
                    name,
                    f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}",
                )
            )
    return results


def small_federation(
    sizes: tuple[tuple[int, int], ...] = ((20, 6),) * 6,
    classes: int = CLASSES,
    seen: int = CLASSES,
    shape: tuple[int, ...] = (1, 16, 16),
) -> Federation:
    """Clients with (train, test) images, labels in turn over the first `seen` classes, each class with a
    pattern of its own."""
    stream = np.random.RandomState(7)
    patterns = stream.randint(0, 256, (classes, *shape))
    total = sum(a + b for a, b in sizes)
    y = np.arange(total) % seen
    x = np.clip(patterns[y] * 0.7 + stream.randint(0, 77, (total, *shape)), 0, 255).astype(np.uint8)
    channels = shape[0]
    data = DataSet(
        "small",
        x,
        y.astype(np.int64),
        tuple(map(str, range(classes))),
        (0.5,) * channels,
        (0.25,) * channels,
    )
    splits, at = [], 0
    for train, test in sizes:
        splits.append(Split(np.arange(at, at + train), np.arange(at + train, at + train + test)))
        at += train + test
    return Federation(data, Partition(tuple(splits), {}, data.digest))


def session(method: Method, federation: Federation | None = None, **settings: Any) -> Session:
    """The method on a small federation, ready to run."""
    words = {
        "workers": 1,
        "guard": "off",
        "rounds": 4,
        "epochs": 2,
        "batch": 8,
        "join": 0.5,
        "lr": 0.05,
        **settings,
    }
    # the configuration describes the plain method even where a watched one runs
    described = method.original if isinstance(method, _Watched) else method
    return prepare(
        configs.check({**words, **settings_of(described)}), federation or small_federation(), method
    )


def states(run: Session, state: State | None = None) -> list[State]:
    """The state after each round; a rejected reply is an error here."""
    found = []
    for round in run.rounds(run.begin() if state is None else run.side.restore(state)):
        for event in round.events:
            if event["event"] != REJECTED:  # its hooks failed
                raise HookError(event["why"])
            raise AssertionError(f"a reply is not what `replies` declares: {event['why']}")
        found.append(run.side.snapshot(round.server))
    return found


def final_models(run: Session, state: State) -> list[Tensor]:
    """Every client's model as served."""
    scores = scoring.score(run.side, run.side.restore(state), models=True)
    return [c.model for c in scores.clients if c.model is not None]


def hooks_are_pure(method: Method) -> None:
    """No hook changes what it was given, the method, or a global generator."""
    before = copy.deepcopy(vars(method))
    watched = _watched(method)
    run = session(watched)
    final_models(run, states(run)[-1])
    assert dict(vars(method)) == before, "the method object changed while it ran"


def same_seed_same_bits(method: Method) -> None:
    """Two runs with one seed end in the same bits; another seed does not."""
    first, again, other = (session(method), session(method), session(method, seed=43))
    a, b, c = (final_models(run, states(run)[-1]) for run in (first, again, other))
    assert all(_same(x, y) for x, y in zip(a, b, strict=True)), "two runs with the same seed differ"
    assert not all(_same(x, y) for x, y in zip(a, c, strict=True)), "the seed changes nothing"


def what_is_kept_stays(method: Method) -> None:
    """No value of a client's kept entries appears in anything that is sent."""
    run = session(method)
    heard = Heard()
    last = states(run.observed(heard))[-1]
    for i, memory in last.memories.items():
        if memory.kept is None:
            continue
        own = memory.kept[
            (memory.kept != 0) & (memory.kept != 1) & (memory.kept != run.fed.initial[run.side.wire.kept])
        ]
        for message, reply in heard.pairs:
            for what, carrier in (("a message", message), ("the reply", reply)):
                for name, tensor, _ in fields_of(carrier):
                    found = int(torch.isin(own, tensor[tensor.isfinite()]).sum())
                    # among 60,000 floats a few are equal by chance
                    if reply.client == i and found > 3 + len(own) // 50:
                        raise AssertionError(
                            f"{found} of {len(own)} kept entries of client {i} appear in {what} as {name!r}"
                        )


def absent_clients_can_be_scored(method: Method) -> None:
    """Clients that never took part have a model."""
    run = session(method, rounds=1, join=0.17)
    state = states(run)[-1]
    trained = [i for i, memory in state.memories.items() if memory.kept is not None]
    assert len(trained) < run.fed.clients, "every client trained"
    for theta in final_models(run, state):
        assert theta.isfinite().all(), "a client that never took part has no finite model"


def small_federations_work(method: Method) -> None:
    """One client; one sample per class; fewer samples than a batch; a class nobody has; all clients a
    round; one a round."""
    cases: dict[str, tuple[Federation, dict[str, Any]]] = {
        "one client": (small_federation(((20, 6),)), {"join": 1.0}),
        "one sample per class": (small_federation(((4, 4),) * 4), {"join": 1.0}),
        "fewer samples than a batch": (small_federation(((5, 3), (20, 6), (3, 2), (1, 2))), {"join": 1.0}),
        "a class nobody has": (small_federation(((12, 6),) * 4, seen=CLASSES - 1), {}),
        "all clients in every round": (small_federation(), {"join": 1.0}),
        "one client a round": (small_federation(), {"join": 0.17}),
    }
    for name, (federation, settings) in cases.items():
        run = session(method, federation, **settings)
        try:
            models = final_models(run, states(run)[-1])
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        assert all(theta.isfinite().all() for theta in models), f"{name}: a client's model is not finite"


def state_survives_files(method: Method) -> None:
    """A run that goes on from its state written and read after each round ends in the same bits."""
    from safetensors.torch import load, save

    run = session(method)
    straight = states(run)
    for state in straight[:-1]:
        tensors = {name: t.clone() for name, t in to_tensors(state).items()}
        again = states(run, from_tensors(load(save(tensors))))[-1]
        a, b = final_models(run, straight[-1]), final_models(run, again)
        assert all(_same(x, y) for x, y in zip(a, b, strict=True)), (
            f"going on from files after round {state.server.round} gives a different result"
        )


def others_are_undisturbed(method: Method) -> None:
    """A client's work depends on its own message and memory alone, not on what was done before it."""
    run = session(method)
    state = states(run)[1]
    messages = method.send(run.fed, state.server, [0, 1], "train")

    def work(i: int) -> Reply:
        reply, _ = run_client(run.worker, Work(i, 2, messages[i], "train"), state.memories.get(i, Memory()))
        return reply

    alone = work(1)
    work(0)
    after = work(1)
    assert alone.model is None or after.model is None or _same(alone.model, after.model), (
        "a client's reply depends on who ran before"
    )


def any_optimiser_works(method: Method) -> None:
    """Adam with a falling learning rate, and Nesterov's momentum with weight decay."""
    cases: dict[str, dict[str, Any]] = {
        "Adam": {"optimiser": {"rule": "adam"}, "schedule": {"rule": "cosine"}, "lr": 0.005},
        "Nesterov's momentum": {
            "optimiser": {"rule": "sgd", "nesterov": True},
            "momentum": 0.5,
            "decay": 0.01,
        },
    }
    for name, settings in cases.items():
        run = _short(method, **settings)
        for theta in final_models(run, states(run)[-1]):
            assert theta.isfinite().all(), f"{name}: a client's model is not finite"


def augmented_images_reach_training(method: Method) -> None:
    """Mirrored and cropped images train other models, as finite and as repeatable as the stored ones do."""
    words: list[dict[str, Any]] = [{"augment": {"flip": True, "crop": 4}}] * 2 + [{}]
    runs = [_short(method, **each) for each in words]
    a, b, plain = (final_models(run, states(run)[-1]) for run in runs)
    assert all(theta.isfinite().all() for theta in a), "a client's model is not finite"
    assert all(_same(x, y) for x, y in zip(a, b, strict=True)), "two runs with the same seed differ"
    assert not all(_same(x, y) for x, y in zip(a, plain, strict=True)), "augmentation changes nothing"


def norm_statistics_may_be_shared(method: Method) -> None:
    """With `buffers = shared` the statistics travel like other entries, and every client has a model."""
    run = _short(method, buffers="shared")
    final = states(run)[-1]
    if not bool(method.keeps(run.fed.layout)[run.fed.layout.buffers].any()):
        kept = run.side.wire.kept & run.fed.layout.buffers
        assert not kept.any(), "the statistics stay at the clients"
    for theta in final_models(run, final):
        assert theta.isfinite().all(), "a client's model is not finite"


def the_second_score_tunes_what_is_served(method: Method) -> None:
    """Its local epochs, with steps that are too small to see, start from the served model, or from what the method
    answers to the task that `tunes` names."""
    run = _short(method, shuffle=True)
    server = run.side.restore(states(run)[-1])
    tuned = scoring.score(run.side, server, finetune=1, lr=1e-30, models=True)
    entries = run.fed.layout.trainable
    for one, served in zip(tuned.clients, final_models(run, run.side.snapshot(server)), strict=True):
        assert one.model is not None, f"client {one.client} has no tuned model: {one.absent}"
        assert one.model.isfinite().all(), "a tuned model is not finite"
        if method.tunes == "score":
            apart = float((one.model - served)[entries].abs().max())
            assert apart < 1e-6, (
                f"client {one.client}'s tuning starts {apart:.2g} away from its served model"
            )


def what_it_declares_is_used(method: Method) -> None:
    """No `gradient` hides its `loss`, its `network` adds entries, and all clients answer its task `last`."""
    run = _short(method)
    final = states(run)[-1]
    if type(method).loss is not Method.loss and type(method).autograd is Method.autograd:
        assert type(method).gradient is Method.gradient, (
            "it has a `loss` and a `gradient`, which takes its place: the loss is never called"
        )
    if method.reshapes():
        plain = _short(parse("fedavg"))
        assert run.fed.layout.names != plain.fed.layout.names, "its network has no entries of its own"
    if method.last:
        done = last_wave(run.side, run.side.restore(final))
        assert done is not None
        assert len(done.replies) == run.fed.clients, f"{method.last!r} was not answered by all clients"
        models = final_models(run, run.side.snapshot(done.server))
        assert all(theta.isfinite().all() for theta in models), (
            f"after {method.last!r} a model is not finite"
        )


def _short(method: Method, **settings: Any) -> Session:
    """Two rounds."""
    return session(method, small_federation(((14, 4),) * 3), **{"rounds": 2, "join": 0.67, **settings})


CHECKS: dict[str, Callable[[Method], None]] = {
    f.__name__.replace("_", " "): f
    for f in (
        hooks_are_pure,
        same_seed_same_bits,
        what_is_kept_stays,
        absent_clients_can_be_scored,
        small_federations_work,
        state_survives_files,
        others_are_undisturbed,
        any_optimiser_works,
        augmented_images_reach_training,
        norm_statistics_may_be_shared,
        the_second_score_tunes_what_is_served,
        what_it_declares_is_used,
    )
}


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.nan_to_num(0.125), b.nan_to_num(0.125)) and torch.equal(a.isnan(), b.isnan()))


class Heard:
    """An observer that keeps every message with its reply."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Message, Reply]] = []

    def __call__(self, work: Work, done: Done | Absent) -> None:
        if isinstance(done, Done):
            assert isinstance(done.result, Reply)
            self.pairs.append((work.message, done.result))


class _Watched:
    """Marks a method whose hooks are watched."""

    original: Method


def _generators() -> tuple[bytes, Any, bytes, int]:
    """The state of every global generator."""
    legacy: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), legacy[1].tobytes(), legacy[2]


def _watched(method: Method) -> Method:
    """A method of the same kind whose every hook is held to change nothing."""

    def hook(name: str) -> Callable[..., Any]:
        def held(self: Method, *arguments: Any) -> Any:
            seen = list(_tensors(arguments))
            copies = [t.clone() for _, t in seen]
            generators = _generators()
            result = getattr(method, name)(*arguments)
            for (where, tensor), before in zip(seen, copies, strict=True):
                assert _same(tensor, before), f"{name} changed {where}, which it was given"
            assert generators == _generators(), (
                f"{name} drew from a global generator; use the one it is handed"
            )
            return result

        return held

    kind = type(method)
    body: dict[str, Any] = {name: hook(name) for name in HOOKS} | {
        "original": method,
        "plain": lambda self, job: method.plain(job),
        "autograd": lambda self: method.autograd(),
        "reshapes": lambda self: method.reshapes(),
        "network": lambda self, net, head: method.network(net, head),
    }
    watched = type(kind.__name__, (_Watched, kind), body)
    new: Method = object.__new__(watched)
    for option in fields(method):
        object.__setattr__(new, option.name, getattr(method, option.name))
    return new


def _tensors(value: Any, where: str = "an argument") -> Iterator[tuple[str, Tensor]]:
    """Every tensor that can be reached from a hook's arguments, with a word on where it was."""
    if isinstance(value, Tensor):
        yield where, value
    elif isinstance(value, Rows):
        yield from ((where, value[i]) for i in [-1, *value.ids])
    elif isinstance(value, Pairs):
        yield from ((where, t) for t in value.tensors().values())
    elif isinstance(value, Job):
        yield from _tensors(value.fed, "the federation's facts")
        yield from _tensors(value.message, "the message")
        yield from _tensors(value.memory, "the client's memory")
        yield from _tensors(value.part("train"), "the client's samples")
        yield from _tensors(getattr(value, "start", None), "the start")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, where)
    elif is_dataclass(value) and not isinstance(value, (type, Worker)):
        for part in fields(value):
            if part.name not in ("net", "settings"):
                yield from _tensors(
                    getattr(value, part.name), f"{type(value).__name__.lower()}.{part.name}"
                )
