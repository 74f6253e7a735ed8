"""One client's work: `train` is the only local training loop; a round, a score and a fine-tuned score all
run through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from pfedsim.core.job import Job, Work, Worker
from pfedsim.core.method import Memory, Method, Phase, Reply
from pfedsim.core.seeds import torch_seeded
from pfedsim.errors import Error, HookError

if TYPE_CHECKING:
    from torch import Tensor


def run_client(site: Worker, work: Work) -> tuple[Reply, Memory]:
    """One client's answer to one message, and what it remembers."""
    with _on(site, work) as job:
        with hook(site.method, "phases", job):
            phases = list(site.method.phases(job))
        began = perf_counter()
        ends = train(site.method, job, phases)
        seconds = perf_counter() - began
        with hook(site.method, "finish", job):
            reply, client = site.method.finish(job, ends)
    model = None if reply.model is None else sealed(site.kept, {"model": reply.model})["model"]
    info = {**reply.info, "seconds": seconds}
    return replace(reply, model=model, extra=sealed(site.kept, reply.extra), info=info), client


def run_to_score(site: Worker, work: Work, finetune: int = 0) -> Tensor:
    """The model that this client would use now; with `finetune`, after so many plain local epochs. Nothing
    is kept."""
    with _on(site, work) as job:
        if finetune:
            return train(Method(), job, [Phase(site.fed.layout.trainable, finetune, site.fed.settings.lr)])[
                -1
            ]
        with hook(site.method, "phases", job):
            phases = list(site.method.phases(job))
        return train(site.method, job, phases)[-1]


def train(method: Method, job: Job, phases: Sequence[Phase]) -> list[Tensor]:
    """The only local training loop: the model after each phase, or the start where there is none."""
    import torch

    settings, trainable = job.fed.settings, job.fed.layout.trainable
    statistics = job.fed.layout.buffers.nonzero()[:, 0]
    theta, ends = job.start.theta, []
    for job.phase in phases:
        theta = (theta if job.phase.start is None else job.phase.start).clone()
        job._statistics = theta[statistics]
        moves = job.phase.train & trainable
        lr = job.phase.lr * settings.lr_decay**job.round
        if method.plain(job) and (end := job.descend(theta, job.phase, moves, lr)) is not None:
            ends.append(theta := end)
            continue
        velocity = torch.zeros_like(theta)
        for numbers in job.passes(job.phase):
            with hook(method, "gradient", job):
                step = _whole(job, method.gradient(job, theta, [job.batch(n) for n in numbers]))
            if settings.decay:
                step = step + settings.decay * theta
            if settings.momentum:
                step = velocity = settings.momentum * velocity + step
            theta = torch.where(moves, theta - lr * step, theta)
            theta[statistics] = job._statistics
            job.steps += 1
        ends.append(theta)
    return ends or [theta]


def sealed(kept: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as sent: in models, what is kept at home is NaN, so that a leak or a forgotten `mine` shows
    at once."""

    def seal(t: Tensor) -> Tensor:
        return t.masked_fill(kept.to(t.device), float("nan")) if t.ndim and t.shape[-1] == len(kept) else t

    return {name: seal(t).cpu() for name, t in tensors.items()}


@contextmanager
def _on(site: Worker, work: Work) -> Iterator[Job]:
    job = Job(site, work)
    with torch_seeded(site.fed.settings.seed, f"{work.purpose}/torch", work.round, work.client):
        with hook(site.method, "begin", job):
            job.start = site.method.begin(job)
            _whole(job, job.start.theta)
        yield job


def _whole(job: Job, vector: Tensor) -> Tensor:
    """A vector that a hook returned; one of another size would be stretched without a word."""
    if vector.shape != job.fed.initial.shape:
        raise ValueError(f"it gave shape {tuple(vector.shape)}, expected {tuple(job.fed.initial.shape)}")
    return vector


@contextmanager
def hook(method: Method, name: str, job: Job | None = None, round: int | None = None) -> Iterator[None]:
    """Names method, hook, client and round when a hook fails."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        where = (
            f" for client {job.client} in round {job.round}"
            if job
            else ""
            if round is None
            else f" in round {round}"
        )
        raise HookError(
            f"{type(method).__name__}.{name} failed{where}: {type(error).__name__}: {error}"
        ) from error
