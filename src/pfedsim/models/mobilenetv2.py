"""MobileNetV2, width 1, with torchvision's tensor names, which lets torchvision's weights load unchanged. Sandler et
al., MobileNetV2: inverted residuals and linear bottlenecks, CVPR 2018. The stem has stride 2 (1 in the pFedSim
paper's table is an error). A new classifier is initialised with N(0, 0.01) and bias 0, as in torchvision; the
author's code uses a new linear layer with torch's default initialisation."""

from __future__ import annotations

from torch import Tensor, nn

from pfedsim.errors import Error

# expansion, channels out, blocks, stride of the first block: table 2 of the paper
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, LAST, DROPOUT = 32, 1280, 0.2


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class Block(nn.Module):
    """Expand, depthwise convolution, project without activation; added to the input if the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        wide = inputs * expansion
        widen = [_conv(inputs, wide)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            _conv(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class MobileNetV2(nn.Module):
    """Stem of stride 2, seventeen inverted residual blocks, 1280 channels averaged, dropout, a linear
    classifier."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        if len(shape) != 3 or shape[0] != 3 or min(shape[1:]) < 32:
            raise Error(
                "mobilenetv2 takes colour images (3, height, width) of at least 32 x 32; these samples "
                f"are {shape}"
            )
        layers: list[nn.Module] = [_conv(3, STEM, 3, 2)]
        inputs = STEM
        for expansion, outputs, blocks, stride in BLOCKS:
            for k in range(blocks):
                layers.append(Block(inputs, outputs, stride if k == 0 else 1, expansion))
                inputs = outputs
        self.features = nn.Sequential(*layers, _conv(inputs, LAST))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(LAST, classes))
        for module in self.modules():  # torchvision's initialisation
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.flatten(self.pool(self.features(x))))
        return scores
