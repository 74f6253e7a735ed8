"""ResNet-20 for small images, with 1x1 convolutions where a shortcut changes its shape. He et al., Deep residual
learning for image recognition, CVPR 2016, section 4.2 (shortcuts B)."""

from __future__ import annotations

from torch import Tensor, nn

from pfedsim.errors import Error

WIDTHS, BLOCKS = (16, 32, 64), 3


class Block(nn.Module):
    """Two 3x3 convolutions, added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        changes = stride > 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        added: Tensor = self.relu(out + self.shortcut(x))
        return added


class ResNet20(nn.Module):
    """A 3x3 stem, nine residual blocks of 16, 32 and 64 channels, their mean, a linear classifier."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise Error(
                f"resnet20 takes images (channels, height, width) of at least 8 x 8; these samples are {shape}"
            )
        layers: list[nn.Module] = [
            nn.Conv2d(shape[0], WIDTHS[0], 3, 1, 1, bias=False),
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(),
        ]
        inputs = WIDTHS[0]
        for width in WIDTHS:
            for k in range(BLOCKS):
                layers.append(Block(inputs, width, 2 if k == 0 and width > WIDTHS[0] else 1))
                inputs = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.flatten(self.pool(self.features(x))))
        return scores
