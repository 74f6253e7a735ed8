"""One client's work: `train` is the only local training loop; a round, a score and a fine-tuned score all
run through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pfedsim.core.hooks import at, hook
from pfedsim.core.job import Job, Work, Worker
from pfedsim.core.method import Memory, Method, Phase, Reply
from pfedsim.core.optimisers import follower, plain
from pfedsim.core.purity import public, same_process, unchanged, watches
from pfedsim.core.seeds import torch_seeded

if TYPE_CHECKING:
    from torch import Tensor


def run_client(worker: Worker, work: Work, memory: Memory) -> tuple[Reply, Memory]:
    """One client's answer to one message, and what it remembers."""
    with _on(worker, work, memory) as job:
        phases = _phases(worker.method, job)
        began = perf_counter()
        who = f"{type(worker.method).__name__}.gradient{at(job)}"
        with same_process(who), unchanged(who, job.round, **_given(job)):
            ends = train(worker.method, job, phases)
        seconds = perf_counter() - began
        with hook(worker.method, "finish", job, **_given(job)):
            reply, remembered = worker.method.finish(job, ends)
            reply, remembered = worker.wire.proper(reply), worker.wire.proper_memory(remembered)
    reply = worker.wire.sealed(reply)
    return replace(reply, info={**reply.info, "seconds": seconds}), remembered


def run_to_score(
    worker: Worker, work: Work, memory: Memory, finetune: int = 0, lr: float | None = None
) -> tuple[Tensor, Job]:
    """The model that this client would use now, and its job; with `finetune`, after so many plain local epochs, at
    `lr` or at the learning rate that the next round would have. Nothing is kept."""
    tuned = work.purpose
    if work.message.task == "score":  # the draws that made the served model make it again
        work = work._replace(purpose="score")
    with _on(worker, work, memory) as job:
        theta = job.start.theta
        if job.message.task != "train":  # a method that tunes what it sends for training tunes the start
            with same_process(f"{type(worker.method).__name__}.gradient{at(job)}"):
                theta = train(worker.method, job, _phases(worker.method, job))[-1]
        if not finetune:
            return theta, job
        if lr is not None:
            job._pace = 1.0
        epochs = Phase(worker.fed.layout.trainable, finetune, lr or worker.fed.settings.lr, start=theta)
        job.draw_for(tuned)
        with torch_seeded(worker.fed.settings.seed, f"{tuned}/torch", work.round, work.client):
            return train(Method(), job, [epochs])[-1], job


def train(method: Method, job: Job, phases: Sequence[Phase]) -> list[Tensor]:
    """The only local training loop: the model after each phase, or the start where there is none."""
    import torch

    settings, trainable = job.fed.settings, job.fed.layout.trainable
    statistics = job.fed.layout.statistics
    theta, ends = job.start.theta, []
    for job.phase in phases:
        theta = theta if job.phase.start is None else job.phase.start
        job._statistics = theta[..., statistics]
        moves = job.phase.train & trainable
        lr = job.phase.lr * job._pace
        if theta.ndim == 1 and job.phase.batches == 1 and method.plain(job) and plain(settings):
            theta = job.descend(theta, job.phase, moves, lr)
            ends.append(theta)
            continue
        theta, follow, still = theta.clone(), follower(settings), ~moves
        moved = theta.new_empty(theta.shape)
        for numbers in job.passes(job.phase):
            with hook(method, "loss" if method.autograd() else "gradient", job):
                step = _whole(job, method.gradient(job, theta, [job.batch(n) for n in numbers]), theta)
            if settings.decay:
                step = step + settings.decay * theta
            theta = theta.sub_(torch.mul(follow(step), lr, out=moved).masked_fill_(still, 0.0))
            theta[..., statistics] = job._statistics
            job.steps += 1
        ends.append(theta)
    return ends or [theta]


@contextmanager
def _on(worker: Worker, work: Work, memory: Memory) -> Iterator[Job]:
    job = Job(worker, work, memory)
    with torch_seeded(worker.fed.settings.seed, f"{work.purpose}/torch", work.round, work.client):
        with hook(worker.method, "begin", job, **_given(job)):
            job.start = worker.method.begin(job)
            _whole(job, job.start.theta)
        yield job


def _phases(method: Method, job: Job) -> list[Phase]:
    """What the method trains; a wrong length would fail far from its cause."""
    with hook(method, "phases", job, **_given(job)):
        phases = list(method.phases(job))
        for phase in phases:
            if isinstance(phase.epochs, bool) or not isinstance(phase.epochs, int) or phase.epochs < 0:
                raise TypeError(f"a phase has epochs = {phase.epochs!r}, expected a whole number")
            if phase.start is not None and phase.start.shape[-1:] != job.fed.initial.shape:
                raise TypeError(f"a phase starts at shape {tuple(phase.start.shape)}, expected models")
    return phases


def _whole(job: Job, vector: Tensor, at: Tensor | None = None) -> Tensor:
    """A vector that a hook returned; one of another size would be stretched without a word."""
    expected = (job.fed.initial if at is None else at).shape
    if vector.shape != expected:
        raise ValueError(f"it gave shape {tuple(vector.shape)}, expected {tuple(expected)}")
    return vector


def _given(job: Job) -> dict[str, Any]:
    """What a client's hooks may not change, in the jobs that are watched."""
    if not watches(job.round, job.client):
        return {}
    return {"message": job.message, "memory": job.memory, **public(job.fed)}
