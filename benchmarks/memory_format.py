"""Contiguous or channels-last samples for the torch backend: samples a second of forward and backward on
one core, in turns. `python benchmarks/memory_format.py`; half a minute."""

import time
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

from pfedsim.models.lenet5 import LeNet5


def blocks() -> nn.Module:
    """MobileNetV2's stem and its first two inverted residuals: depthwise convolutions."""

    def step(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        convolution = nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(out), nn.ReLU6()]

    body = [
        *step(3, 32, 3, 2),
        *step(32, 32, 3, 1, 32),
        *step(32, 16, 1),
        *step(16, 96, 1),
        *step(96, 96, 3, 2, 96),
        *step(96, 24, 1),
    ]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def main() -> None:
    torch.set_num_threads(1)
    for name, make, shape in (
        ("LeNet5", lambda: LeNet5((3, 32, 32), 10), (3, 32, 32)),
        ("depthwise blocks", blocks, (3, 64, 64)),
    ):
        rates: dict[str, list[float]] = {"contiguous": [], "channels last": []}
        for _ in range(7):
            for word, layout in (
                ("contiguous", torch.contiguous_format),
                ("channels last", torch.channels_last),
            ):
                network, x, y = (
                    make(),
                    torch.randn(96, *shape).to(memory_format=layout),
                    torch.randint(10, (96,)),
                )
                began = time.process_time()
                for first in range(0, 96, 32):
                    F.cross_entropy(network(x[first : first + 32]), y[first : first + 32]).backward()
                rates[word].append(96 / (time.process_time() - began))
        best = max(rates["channels last"]) / max(rates["contiguous"])
        middle = median(rates["channels last"]) / median(rates["contiguous"])
        print(
            f"{name}: channels last is {best:.2f} times contiguous by the best of 7, {middle:.2f} by the "
            "median"
        )


if __name__ == "__main__":
    main()
