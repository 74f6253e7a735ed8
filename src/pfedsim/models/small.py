"""Small networks with batch norm: `mlp` for tables and `cnn1d` for signals."""

from __future__ import annotations

import math

from torch import Tensor, nn

from pfedsim.errors import Error


class MLP(nn.Module):
    """Two hidden layers of 64 with batch norm."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(math.prod(shape), 64)
        self.bn1 = nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, 64)
        self.bn2 = nn.BatchNorm1d(64)
        self.relu = nn.ReLU()
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.fc1(self.flatten(x))))
        scores: Tensor = self.classifier(self.relu(self.bn2(self.fc2(x))))
        return scores


class CNN1d(nn.Module):
    """Three convolutions over time (32, 64 and 64 channels, width 5) with batch norm, the first two with a max pool,
    then the mean over time."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 2 or shape[1] < 4:
            raise Error(
                f"cnn1d takes signals (channels, length) of at least 4 steps; these samples are {shape}"
            )
        self.conv1 = nn.Conv1d(shape[0], 32, 5, padding=2)
        self.bn1 = nn.BatchNorm1d(32)
        self.conv2 = nn.Conv1d(32, 64, 5, padding=2)
        self.bn2 = nn.BatchNorm1d(64)
        self.conv3 = nn.Conv1d(64, 64, 5, padding=2)
        self.bn3 = nn.BatchNorm1d(64)
        self.pool = nn.MaxPool1d(2)
        self.mean = nn.AdaptiveAvgPool1d(1)
        self.flatten = nn.Flatten()
        self.relu = nn.ReLU()
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.mean(self.relu(self.bn3(self.conv3(x))))
        scores: Tensor = self.classifier(self.flatten(x))
        return scores
