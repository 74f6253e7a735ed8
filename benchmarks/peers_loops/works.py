"""The two published works, as every program of this comparison does them. Needs NumPy and torch alone.

W1: 100 clients of 500 samples, all of them in each of 5 rounds, 5 epochs, batch 50, the PyTorch tutorial's CNN.
W2: 1,000 clients of 50 samples, 50 a round, one epoch, batch 10, 20 rounds, pfl-research's CNN with dropout.

Images are random bytes. At the end the last model is scored on 10,000 of them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

LR = 0.01
TESTS = 10_000


@dataclass(frozen=True)
class Work:
    network: str
    clients: int
    samples: int  # of a client
    cohort: int
    epochs: int
    batch: int
    rounds: int

    @property
    def a_round(self) -> int:
        """Samples that are trained in a round."""
        return self.cohort * self.samples * self.epochs

    @property
    def tests(self) -> int:
        """Test samples of a client."""
        return TESTS // self.clients


WORKS = {
    "W1": Work("Tutorial", 100, 500, 100, 5, 50, 5),
    "W2": Work("Research", 1000, 50, 50, 1, 10, 20),
}


class Tutorial(nn.Module):
    """The CNN of the PyTorch tutorial: 62 thousand entries."""

    def __init__(self, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        )
        self.classifier = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.body(x))
        return scores


class Research(nn.Module):
    """The CNN of pfl-research's CIFAR-10 benchmark: 1.6 million entries."""

    def __init__(self, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5)),
        )
        self.classifier = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.body(x))
        return scores


class Dry(Research):
    """The same without dropout, which changes what is computed around the kernels in nothing else."""

    def __init__(self, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10):
        super().__init__(shape, classes)
        self.body = nn.Sequential(*(layer for layer in self.body if not isinstance(layer, nn.Dropout)))


NETWORKS = {"Tutorial": Tutorial, "Research": Research}


def asked() -> tuple[Work, int]:
    """The work and the number of rounds that the driver asks for."""
    work = WORKS[os.environ["PEERS_WORK"]]
    return work, int(os.environ["PEERS_ROUNDS"])


def network(work: Work) -> nn.Module:
    torch.manual_seed(42)
    return NETWORKS[work.network]()


def mark(what: str) -> None:
    """Tells the driver where this program is: "begin" (its libraries are loaded), "round", "end"."""
    print(f"\nMARK {what} {time.perf_counter()}", flush=True)


def stored() -> tuple[np.ndarray, np.ndarray]:
    """60,000 images of random bytes and their labels: the clients' train samples, then the tests."""
    images = np.load(Path(os.environ["PEERS_DATA"]), mmap_mode="r")
    return images, np.random.default_rng(1).integers(0, 10, len(images))


def as_floats(images: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(images)).float().div_(255).sub_(0.5).div_(0.25)


def of_client(work: Work, client: int) -> tuple[Tensor, Tensor]:
    """A client's train samples as the network takes them."""
    images, labels = stored()
    here = slice(client * work.samples, (client + 1) * work.samples)
    return as_floats(images[here]), torch.from_numpy(labels[here])


def train(net: nn.Module, work: Work, x: Tensor, y: Tensor) -> None:
    """A client's epochs of plain SGD over batches that are drawn anew."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(work.epochs):
        for numbers in torch.randperm(len(y)).split(work.batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[numbers]), y[numbers]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    """On the test samples."""
    images, labels = stored()
    net.eval()
    right = 0
    for first in range(len(labels) - TESTS, len(labels), 100):
        here = slice(first, first + 100)
        right += int((net(as_floats(images[here])).argmax(1) == torch.from_numpy(labels[here])).sum())
    return right / TESTS
