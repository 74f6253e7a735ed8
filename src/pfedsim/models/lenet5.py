"""LeNet5 with batch norm and two max pools, the network behind the paper's numbers. (The paper's table has one pool,
and 3 input channels for the second convolution; both are errors.) LeCun et al., Gradient-based learning applied to
document recognition, 1998."""

from __future__ import annotations

from torch import Tensor, nn

from pfedsim.errors import Error


class LeNet5(nn.Module):
    """conv 5x5 (6) - conv 5x5 (16) - 120 - 84 - classes; each convolution with batch norm, ReLU and a 2x2
    max pool."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 16:
            needs = "lenet5 takes images (channels, height, width) of at least 16 x 16"
            raise Error(
                f"{needs}; these samples are {shape}: use the model mlp or cnn1d, or your own as file.py:Class"
            )
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.bn2 = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(16 * _left(height) * _left(width), 120)
        self.fc2 = nn.Linear(120, 84)
        self.classifier = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.fc1(self.flatten(x)))
        scores: Tensor = self.classifier(self.relu(self.fc2(x)))
        return scores


def _left(length: int) -> int:
    """The length that remains after two unpadded 5-wide convolutions, each with a pool of 2."""
    return ((length - 4) // 2 - 4) // 2
