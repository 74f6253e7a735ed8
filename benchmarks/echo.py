"""Methods without training, so that only what the server and the engine do takes time."""

from __future__ import annotations

from dataclasses import dataclass

from pfedsim.core import Method
from pfedsim.methods.pfedsim import Personalization, PFedSim


@dataclass(frozen=True)
class Echo(Method):
    """Every client sends back the model that it got, a little changed. The server is FedAvg's: one mean."""

    def phases(self, job):
        return []

    def finish(self, job, ends):
        theta = job.start.theta * 0.999
        return job.reply(theta), job.remember(theta)


@dataclass(frozen=True)
class EchoMix(Personalization):
    phases, finish = Echo.phases, Echo.finish


@dataclass(frozen=True)
class EchoSim(PFedSim):
    """The same with pFedSim's server, from the first round on: a mean for each client, and all pairs compared."""

    rho: float = 0.0

    def second(self):
        return EchoMix(self.similarity, self.own)
