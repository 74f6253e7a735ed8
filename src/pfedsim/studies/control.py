"""A control for pFedSim's second stage: FedPer (Arivazhagan et al. 2019) after the same warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pfedsim.method import Fed, Message, Method, Reply, Server, Share
from pfedsim.methods.two_stage import TwoStage

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OwnHeads(Method):
    """One extractor for all, averaged; a classifier for each, which the server holds for it."""

    def send(self, fed: Fed, server: Server, clients: Sequence[int], task: str) -> dict[int, Message]:
        assert server.personal is not None
        return {i: Message(task, server.model.where(~fed.layout.head, server.personal[i])) for i in clients}

    def aggregate(self, fed: Fed, server: Server, task: str, replies: Sequence[Reply], rng: torch.Generator) -> Server:
        assert server.personal is not None
        personal = server.personal.put({r.client: r.model for r in replies if r.model is not None})
        return replace(server, model=self.mean(fed, replies), personal=personal)


@dataclass(frozen=True)
class WarmFedPer(TwoStage):
    """FedAvg for floor(rho T) rounds, then FedPer."""

    title = "FedPer, warmed up"
    paper = "a control, not of the paper"

    rho: Annotated[Share, "share of the rounds that warm up"] = 0.5

    def first(self) -> Method:
        from pfedsim.methods import parse

        return parse("fedavg")

    def second(self) -> Method:
        return OwnHeads()
