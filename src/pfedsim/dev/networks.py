"""Networks of other code bases, to be measured beside ours."""

from __future__ import annotations

from torch import Tensor, nn


class Published(nn.Module):
    """A body and a linear classifier."""

    def __init__(self, body: nn.Module, width: int, classes: int):
        super().__init__()
        self.body, self.classifier = body, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.body(x))
        return scores


class PFLlibCNN(Published):
    """PFLlib's FedAvgCNN: 5x5 convolutions of 32 and 64 channels, each with a pool, and 512 features."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        side = ((shape[1] - 4) // 2 - 4) // 2
        body = nn.Sequential(
            nn.Conv2d(shape[0], 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * side * side, 512),
            nn.ReLU(),
        )
        super().__init__(body, 512, classes)


class PflResearchCNN(Published):
    """pfl-research's CNN for CIFAR-10: 3x3 convolutions of 32 and 64 channels, dropout, 128 features."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        side = (shape[1] - 4) // 2
        body = nn.Sequential(
            nn.Conv2d(shape[0], 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        super().__init__(body, 128, classes)


class VGG6(Published):
    """Pairs of 3x3 convolutions of 32, 64 and 128 channels with batch norm, a pool after each pair."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        layers: list[nn.Module] = []
        inputs = shape[0]
        for width in (32, 64, 128):
            for _ in range(2):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        super().__init__(
            nn.Sequential(*layers, nn.Flatten()), inputs * (shape[1] // 8) * (shape[2] // 8), classes
        )
