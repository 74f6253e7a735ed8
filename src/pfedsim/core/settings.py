"""How a run trains: the same words in TOML, on the command line and in Python."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LABEL_FLIP = "label-flip"


class Defence(BaseModel):
    """A mean that withstands hostile replies, in place of the method's weighted mean of models."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rule: Literal["median", "trimmed-mean", "norm-clipping", "krum", "multi-krum"] = Field(
        description="robust mean of the clients' models"
    )
    share: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="share of a round's replies that may be hostile: what the rule withstands",
    )


class Attack(BaseModel):
    """Clients that attack: a share of all clients, drawn from the seed, or clients by number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["sign-flip", "scaling", "noise", "label-flip"] = Field(
        description="sign-flip, scaling, noise: steps backwards, too far, in a random direction; label-flip: "
        "training on wrong labels"
    )
    share: float = Field(0.0, ge=0, le=1, description="share of the clients that attack")
    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="clients that attack")
    strength: float = Field(
        10.0, gt=0, description="how many times as far as an honest step (no effect on label-flip)"
    )

    @model_validator(mode="after")
    def _somebody(self) -> Attack:
        if not self.share and not self.clients:
            raise ValueError("nobody attacks: set share or clients")
        return self


Rate = Annotated[float, Field(ge=0, lt=1)]


class Optimiser(BaseModel):
    """How clients step, where it is not plain SGD. It begins anew in every phase."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rule: Literal["sgd", "adam"] = Field(
        description="optimiser of the clients; lr, decay and momentum apply"
    )
    nesterov: bool = Field(False, description="Nesterov's momentum, for sgd with momentum")
    betas: tuple[Rate, Rate] = Field((0.9, 0.999), description="Adam's decay of its two moments")
    epsilon: float = Field(1e-8, gt=0, description="Adam's smallest denominator")


class Schedule(BaseModel):
    """How the learning rate falls from round to round."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rule: Literal["cosine", "step"] = Field(
        description="learning rate by rounds: cosine falls to `floor` times lr by the last round, step is multiplied "
        "by `factor` after every `every` rounds"
    )
    floor: float = Field(0.0, ge=0, lt=1, description="share of lr that cosine ends with")
    every: int = Field(30, ge=1, description="rounds between the steps of 'step'")
    factor: float = Field(0.1, gt=0, lt=1, description="what 'step' multiplies lr by")


class Augment(BaseModel):
    """What is done at random to the images of every training step; never to images that are scored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flip: bool = Field(False, description="mirror each image left to right with probability 1/2")
    crop: int = Field(
        0, ge=0, description="add a black border of so many pixels, then crop at random to the size before"
    )


class ServerOptimiser(BaseModel):
    """What the server makes of the mean of its clients' steps, in place of taking it as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rule: Literal["momentum", "adam", "yogi"] = Field(
        description="momentum: FedAvgM; adam, yogi: FedAdam, FedYogi"
    )
    lr: float = Field(1.0, gt=0, description="the server's learning rate; adam and yogi need a small one")
    momentum: Rate = Field(0.9, description="share of the last step that 'momentum' keeps")
    betas: tuple[Rate, Rate] = Field((0.9, 0.99), description="decay of the two moments of adam and yogi")
    tau: float = Field(1e-3, gt=0, description="smallest denominator of adam and yogi")


class Training(BaseModel):
    """What does not depend on the data."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(5, ge=1, description="local epochs in a round")
    local_steps: int = Field(0, ge=0, description="local steps in a round in place of epochs (0: epochs)")
    batch: int = Field(32, ge=2, description="samples in a batch; a batch of one sample is skipped")
    lr: float = Field(0.01, gt=0, description="learning rate")
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="the learning rate is multiplied by this after every round"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum; starts at zero in every phase")
    decay: float = Field(0.0, ge=0, description="weight decay")
    buffers: Literal["local", "shared"] = Field(
        "local", description="norm statistics stay with each client, or are averaged"
    )
    shuffle: bool = Field(False, description="redraw the batches in every epoch")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's train part that is held back for validation"
    )
    guard: Literal["off", "warn", "reject"] = Field(
        "warn",
        description="off, warn, reject: what becomes of a reply that moved over 100 times as far as others; over "
        "10,000 times it is rejected unless off",
    )
    defence: Defence | None = Field(None, description="robust mean of the clients' models")
    augment: Augment | None = Field(None, description="random changes of the images that clients train on")
    optimiser: Optimiser | None = Field(None, description="the clients' optimiser, where it is not SGD")
    schedule: Schedule | None = Field(None, description="the learning rate from round to round")
    server_optimiser: ServerOptimiser | None = Field(None, description="the server's optimiser")
    seed: int = Field(
        42, ge=0, description="seed of the initial model, the client schedule and all training"
    )

    @field_validator("augment")
    @classmethod
    def _nothing_is_none(cls, value: Augment | None) -> Augment | None:
        return value if value is not None and (value.flip or value.crop) else None

    @model_validator(mode="after")
    def _fit_together(self) -> Training:
        chosen = self.optimiser
        if chosen is not None and chosen.rule == "adam" and (self.momentum or chosen.nesterov):
            name = "momentum" if self.momentum else "optimiser.nesterov"
            raise ValueError(f"{name} has no effect on the optimiser 'adam', whose momentum is in betas")
        if chosen is not None and chosen.nesterov and not self.momentum:
            raise ValueError("optimiser.nesterov has no effect without momentum: set momentum, as in 0.9")
        if self.schedule is not None and self.lr_decay != 1:
            raise ValueError(
                f"lr_decay and schedule.rule = {self.schedule.rule!r} exclude each other: set one"
            )
        return self


class Settings(Training):
    """What every method's local training and rounds have in common. Public: methods read it as
    `fed.settings`."""

    rounds: int = Field(200, ge=1)
    join: float = Field(0.1, gt=0, le=1)

    def pace(self, round: int) -> float:
        """What a learning rate is multiplied by in this round, counted from 0."""
        chosen = self.schedule
        if chosen is None:
            return float(self.lr_decay**round)
        if chosen.rule == "step":
            return float(chosen.factor ** (round // chosen.every))
        past = min(round / self.rounds, 1.0)  # an extended run stays at the floor
        return chosen.floor + (1 - chosen.floor) * (1 + math.cos(math.pi * past)) / 2


class Dropouts(BaseModel):
    """Who does not answer in time: shares of the clients in every round, drawn by address, and clients by
    number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    never: float = Field(0.0, ge=0, le=1, description="share of a round's clients that do not answer")
    late: float = Field(
        0.0, ge=0, le=1, description="share of a round's clients whose replies come too late"
    )
    never_clients: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="clients that never answer"
    )
    late_clients: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="clients whose replies always come too late"
    )

    @model_validator(mode="after")
    def _shares(self) -> Dropouts:
        if self.never + self.late > 1:
            raise ValueError(
                f"never and late are {self.never} and {self.late}, more than all clients together"
            )
        return self
