"""A warm-up and what follows: when the switch comes, and that each stage has its own hooks."""

from dataclasses import dataclass, replace

import pytest
import small
import torch

from pfedsim.core.engine import Absent
from pfedsim.core.method import Method, Phase
from pfedsim.core.rows import Rows
from pfedsim.core.settings import Settings
from pfedsim.methods import parse
from pfedsim.methods.two_stage import TwoStage


class Deaf:
    """An engine that loses every reply of some rounds."""

    def __init__(self, engine, lost):
        self.engine, self.lost, self.events, self.stages = engine, lost, [], []
        self.memories = engine.memories

    def run(self, task, works, deadline=None):
        self.stages += [(work.round, work.message.stage) for work in works if work.message.task == "train"]
        for work, done in zip(works, self.engine.run(task, works, deadline), strict=True):
            yield Absent(work.client, "lost") if work.round in self.lost else done


@pytest.mark.parametrize("spec", ["pfedsim", "fedap"])
@pytest.mark.parametrize("lost", [(), (1,), (0, 1), (1, 2)])
def test_rounds_count_even_if_nobody_replied(session, rounds, spec, lost):
    """Two of four rounds warm up; fails where a lost last warm-up round makes the warm-up a round longer."""
    made = session(f"{spec}(rho=0.5)", rounds=4, join=1.0)
    engine = Deaf(made.engine, lost)
    last = rounds(made, engine)[-1].state.server
    assert set(engine.stages) == {(0, "warm"), (1, "warm"), (2, ""), (3, "")}
    assert last.personal is not None
    assert last.personal.ids == [0, 1, 2, 3]


def test_after_lost_rounds_the_common_model_is_everybodys(small_fed):
    """The switch hands out the last common model, whether or not the last warm-up round gave one."""
    method, rng = parse("pfedsim(rho=0.5)"), torch.Generator()
    server = method.init(small_fed, small_fed.initial, rng)
    for finished, stage in ((1, "warm"), (2, "")):
        late = type(server)(finished, server.model, server.personal, server.extra)
        message = method.send(small_fed, late, [0], "train")[0]
        assert message.stage == stage
        assert message.model.equal(small_fed.initial)


@pytest.mark.parametrize(("rho", "total", "warm"), [(0.5, 5, 2), (0.29, 100, 29), (0.0, 4, 0), (1.0, 4, 4)])
def test_the_warm_up_lasts_floor_rho_t_rounds(small_fed, rho, total, warm):
    """0.29 * 100 is 28.999999999999996."""
    fed = replace(small_fed, settings=Settings(rounds=total, join=0.5))
    method = parse(f"pfedsim(rho={rho})")
    server = method.init(fed, fed.initial, torch.Generator())
    stages = [
        method.send(fed, replace(server, round=number), [0], "train")[0].stage for number in range(total)
    ]
    assert stages == ["warm"] * warm + [""] * (total - warm)


NOTED = []


@dataclass(frozen=True)
class Noting(Method):
    """Writes down which stage's hook was called."""

    stage: str = ""
    plainly: bool = False

    def begin(self, job):
        NOTED.append((self.stage, "begin"))
        return super().begin(job)

    def phases(self, job):
        NOTED.append((self.stage, "phases"))
        return [Phase(job.fed.layout.trainable, 1, 0.1)] if job.message.task == "train" else []

    def gradient(self, job, theta, batches):
        NOTED.append((self.stage, "gradient"))
        return torch.zeros_like(theta)

    def plain(self, job):
        NOTED.append((self.stage, "plain"))
        return self.plainly

    def finish(self, job, ends):
        NOTED.append((self.stage, "finish"))
        return super().finish(job, ends)

    def replies(self, fed, message):
        NOTED.append((self.stage, "replies"))
        return super().replies(fed, message)

    def aggregate(self, fed, server, task, replies, rng):
        NOTED.append((self.stage, "aggregate"))
        server = super().aggregate(fed, server, task, replies, rng)
        if server.personal is not None:
            server = type(server)(server.round, server.model, Rows(server.model), server.extra)
        return server


@dataclass(frozen=True)
class Both(TwoStage):
    title = "Both"
    plainly: bool = False

    def first(self):
        return Noting("warm-up", self.plainly)

    def second(self):
        return Noting("then", not self.plainly)


@pytest.mark.parametrize("plainly", [False, True])
def test_every_hook_is_that_of_the_stage(plainly):
    """A stage that is not plain takes its own gradient, and the other one's is never asked."""
    s = small.session(Both(plainly=plainly), rounds=2, backend="native", model="mlp", guard="off")
    NOTED.clear()
    seen = []
    for _ in small.rounds(s):
        seen.append(set(NOTED))
        NOTED.clear()
    always = {"begin", "phases", "plain", "finish", "replies", "aggregate"}
    for names, stage, plain in zip(seen, ("warm-up", "then"), (plainly, not plainly), strict=True):
        assert names == {(stage, hook) for hook in always | (set() if plain else {"gradient"})}
