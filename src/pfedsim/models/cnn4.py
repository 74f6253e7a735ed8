"""The network of PFLlib's published tables and of McMahan et al. 2017: two convolutions and two linear layers, without
norm layers."""

from __future__ import annotations

from torch import Tensor, nn

from pfedsim.errors import Error

LEAST = 16  # pixels a side: two unpadded 5-wide convolutions, each with a pool of 2, leave one


class CNN4(nn.Module):
    """conv 5x5 (32) - conv 5x5 (64) - 512 - classes; ReLU after each layer, a 2x2 max pool after each convolution."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < LEAST:
            raise Error(
                f"cnn4 takes images (channels, height, width) of at least {LEAST} x {LEAST}; these samples are "
                f"{shape}: use the model mlp or cnn1d, or your own as file.py:Class"
            )
        channels, height, width = shape
        left = [((length - 4) // 2 - 4) // 2 for length in (height, width)]
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(64 * left[0] * left[1], 512)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        scores: Tensor = self.classifier(self.relu(self.fc1(self.flatten(x))))
        return scores
