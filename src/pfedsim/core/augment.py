"""Images as training sees them: mirrored, cropped after padding, drawn anew for every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pfedsim.core.settings import Augment
from pfedsim.errors import Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def refuse_unfit(augment: Augment, shape: tuple[int, ...]) -> None:
    """Refuse samples that are no images, and a border as wide as they are."""
    if len(shape) != 3:
        raise Error(f"augment works on images; these samples have shape {shape}: leave augment out")
    if augment.crop >= min(shape[1:]):
        raise Error(
            f"augment.crop = {augment.crop} leaves nothing of some images of {shape[1]} x {shape[2]} pixels; "
            f"expected less than {min(shape[1:])}"
        )


def augmented(x: Tensor, augment: Augment, black: Tensor, rng: torch.Generator) -> Tensor:
    """A new tensor of these images (sample, channel, row, column), each with a draw of its own; `black`: what a border
    is filled with, by channel. `rng` is on the CPU."""
    import torch

    count, channels, height, width = x.shape
    own = torch.arange(count, device=x.device)
    out = x
    if border := augment.crop:
        wide = black.expand(count, channels, height + 2 * border, width + 2 * border).clone()
        wide[:, :, border : border + height, border : border + width] = x
        windows = wide.unfold(2, height, 1).unfold(3, width, 1)  # a view: (sample, channel, top, left, ...)
        top, left = torch.randint(2 * border + 1, (2, count), generator=rng).to(x.device)
        out = windows[own, :, top, left]
    if augment.flip:
        mirrored = torch.randint(2, (count, 1, 1, 1), generator=rng).to(x.device) == 1
        out = torch.where(mirrored, out.flip(3), out)
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return out.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
