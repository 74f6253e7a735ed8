"""Augmentation: what it draws, that every path and engine draws it alike, and that scores never see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import small
import torch
from torch import Tensor

from pfedsim.backends import native
from pfedsim.core.augment import augmented
from pfedsim.core.client import run_client
from pfedsim.core.job import Batch, Job, Work
from pfedsim.core.method import Memory, Message, Method
from pfedsim.core.settings import Augment
from pfedsim.dev.conformance import session, small_federation
from pfedsim.engines.pool import Pool
from pfedsim.errors import Error
from pfedsim.methods import parse
from pfedsim.runs.config import check
from pfedsim.runs.setup import prepare

BOTH = {"flip": True, "crop": 3}


@dataclass(frozen=True)
class StepByStep(Method):
    """FedAvg whose phases do not run in one call."""

    def gradient(self, job: Job, theta: Tensor, batches: Sequence[Batch]) -> Tensor:
        return job.grad(theta, batches[0])


def drawn(x: np.ndarray, flip: bool, border: int, black: float, seed: int) -> np.ndarray:
    """Image by image, with the same draws: borders for all images, then sides."""
    rng = torch.Generator().manual_seed(seed)
    out = x.copy()
    if border:
        places = torch.randint(2 * border + 1, (2, len(x)), generator=rng).numpy()
        for i, (top, left) in enumerate(places.T):
            wide = np.pad(x[i], ((0, 0), (border, border), (border, border)), constant_values=black)
            out[i] = wide[:, top : top + x.shape[2], left : left + x.shape[3]]
    if flip:
        for i, side in enumerate(torch.randint(2, (len(x), 1, 1, 1), generator=rng).flatten().tolist()):
            out[i] = out[i, :, :, ::-1] if side else out[i]
    return out


@pytest.mark.parametrize("words", [BOTH, {"flip": True}, {"crop": 2}], ids=["both", "flip", "crop"])
@pytest.mark.parametrize("last", [False, True])
def test_images_are_mirrored_and_cropped(words: dict[str, Any], last: bool) -> None:
    x = torch.rand(40, 2, 7, 5)
    stored = x.contiguous(memory_format=torch.channels_last) if last else x
    black = torch.full((1, 2, 1, 1), -0.5)
    found = augmented(stored, Augment(**words), black, torch.Generator().manual_seed(9))
    expected = drawn(x.numpy(), words.get("flip", False), words.get("crop", 0), -0.5, 9)
    assert found.equal(torch.from_numpy(expected))
    assert found.stride() == stored.stride()
    same = (found == x).flatten(1).all(1).sum()
    assert 0 <= same < 40
    if words.get("crop"):
        assert (found == -0.5).any()
    else:
        assert 8 < same < 32


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_call_for_a_phase_has_the_bits_of_its_steps(
    backend: str, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_ENTRIES", 5000)  # two steps in one call of the library
    words = {"backend": backend, "momentum": momentum, "augment": BOTH, "shuffle": True, "rounds": 2}
    plain, steps = (session(m, **words) for m in (parse("fedavg"), StepByStep()))
    a, b = (list(small.rounds(s))[-1].server.model.nan_to_num() for s in (plain, steps))
    assert a.equal(b)
    without = list(small.rounds(session(parse("fedavg"), **{**words, "augment": None})))[-1].server.model
    assert not a.equal(without.nan_to_num())


def test_both_backends_train_on_the_same_images() -> None:
    a, b = (
        session(parse("fedavg"), backend=name, augment=BOTH, rounds=1, lr=0.01)
        for name in ("torch", "native")
    )
    x, y = (list(small.rounds(s))[-1].server.model.nan_to_num() for s in (a, b))
    torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def seen_by(s: Any, client: int, round: int, task: str = "train") -> Tensor:
    """All images of an epoch's steps."""
    work = Work(client, round, Message(task, s.fed.initial), task)
    job = Job(s.worker, work, Memory())
    numbers = torch.arange(len(job.labels)).split(8)
    return torch.cat([job.batch(n).x for n in numbers])


def test_every_client_round_and_epoch_has_draws_of_its_own_and_keeps_them() -> None:
    s = session(parse("fedavg"), small_federation(((24, 6),) * 3), augment=BOTH)
    stored = Job(s.worker, Work(0, 0, Message("train", s.fed.initial), "train"), Memory()).part("train").x
    first = seen_by(s, 0, 0)
    assert first.equal(seen_by(s, 0, 0))
    assert not first.equal(stored)
    moved = [(a != b).flatten(1).any(1) for a, b in ((first, stored), (seen_by(s, 0, 1), stored))]
    assert not moved[0].equal(moved[1]) or not first.equal(seen_by(s, 0, 1))
    assert not first.equal(seen_by(s, 0, 1))
    assert not first.equal(seen_by(s, 0, 0, "finetune"))
    assert not first.equal(seen_by(session(parse("fedavg"), s.federation, augment=BOTH, seed=7), 0, 0))
    black = (0 - s.federation.data.mean[0]) / s.federation.data.std[0]
    assert (first == black).sum() > (stored == black).sum()


def test_the_engine_changes_no_bit() -> None:
    s = session(parse("fedavg"), augment=BOTH)
    serial = list(small.rounds(s))
    with Pool(s.worker, 2) as pool:
        pooled = list(small.rounds(s, engine=pool))
    for a, b in zip(serial, pooled, strict=True):
        assert a.server.model.nan_to_num().equal(b.server.model.nan_to_num())
    resumed = list(small.rounds(s, serial[1].state))
    assert resumed[-1].server.model.nan_to_num().equal(serial[-1].server.model.nan_to_num())


def test_scores_and_parts_see_the_stored_images() -> None:
    s, plain = (session(parse("fedavg"), augment=words) for words in (BOTH, None))
    state = list(small.rounds(s))[-1].state
    (found, expected) = (small.score(one, state, predictions=True) for one in (s, plain))
    for a, b in zip(found.clients, expected.clients, strict=True):
        assert a.metrics == b.metrics
        assert (a.predicted == b.predicted).all()
    tuned, untouched = (small.score(one, state, finetune=2, models=True) for one in (s, plain))
    assert tuned.clients[0].model is not None
    assert untouched.clients[0].model is not None
    assert not tuned.clients[0].model.equal(untouched.clients[0].model)  # its epochs are training


def test_what_is_no_image_is_refused_in_a_sentence() -> None:
    words = {"method": "fedavg", "model": "small:Net", "rounds": 1, "augment": {"flip": True}}
    with pytest.raises(Error, match=r"^augment works on images; these samples have shape \(6,\): leave"):
        prepare(check(words), small.table())
    with pytest.raises(
        Error, match=r"augment.crop = 16 leaves nothing of some images .* expected less than 16"
    ):
        session(parse("fedavg"), augment={"crop": 16})
    with pytest.raises(Error, match=r"augment.flips"):
        check({"augment": {"flips": True}})


def test_without_it_configurations_and_bits_are_as_before() -> None:
    config = check({"method": "fedavg", "augment": None})
    assert config.digest() == check({"method": "fedavg"}).digest()
    off = {"method": "fedavg", "augment": {"flip": False, "crop": 0}}
    assert check(off).digest() == config.digest()
    assert "augment" not in config.plain()
    s = session(parse("fedavg"))
    assert s.fed.settings.augment is None
    work = Work(0, 0, Message("train", s.fed.initial), "train")
    reply, _ = run_client(s.worker, work, Memory())
    again, _ = run_client(replace(s.worker), work, Memory())
    assert reply.model is not None
    assert again.model is not None
    assert reply.model.nan_to_num().equal(again.model.nan_to_num())
