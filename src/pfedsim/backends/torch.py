"""Any network on any device by PyTorch: the module's tensors are views of one flat vector, so that loading
a model is one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfedsim.backends.base import AutogradNet, Reopened
from pfedsim.core.layout import Layout, norm_layers

CHUNK = 256  # images in one eval-mode pass
SMALL = 1 << 12  # entries that two calls of torch move as fast as one of ours


class _AtHead(Exception):
    """Ends a forward pass where the head begins."""


class WrittenNet:
    """What a loss written for autograd is given: see `AutogradNet`."""

    def __init__(self, net: TorchNet):
        self.module, self.head, self._net = net._module, net._head, net

    def __call__(self, x: Tensor) -> Tensor:
        scores: Tensor = self.module(x)
        return scores

    def features(self, x: Tensor) -> Tensor:
        return self._net._to_head(x)


class TorchNet(Reopened):
    """A network as functions of its flat vector."""

    def __init__(
        self, module: nn.Module, layout: Layout, head: str, mean: Tensor, std: Tensor, device: torch.device
    ):
        self.device, self.kernels = device, ""
        self._module, self._layout = module.to(device), layout
        self._mean, self._std = mean.to(device), std.to(device)
        self._head = module.get_submodule(head)
        self._features: Tensor | None = None
        self._flat = torch.zeros(layout.size, device=device)
        self._grad = torch.zeros(layout.size, device=device)
        parameters = dict(module.named_parameters())
        tensors = parameters | dict(module.named_buffers())
        for name in layout.names:
            tensors[name].data = layout.view(self._flat, name)
            if name in parameters and parameters[name].requires_grad:
                parameters[name].grad = layout.view(self._grad, name)
        self._buffers = layout.buffers.nonzero()[:, 0].to(device)  # places: ten times as fast as a mask
        # Channels last is 1.5 times as fast for depthwise convolutions and slower for others
        # (docs/performance.md); a rule, not a trial at each start, because the two formats round
        # differently.
        grouped = any(isinstance(m, nn.Conv2d) and m.groups > 1 for m in module.modules())
        self._format = torch.channels_last if grouped else torch.preserve_format
        self._stops = False
        self._hook = self._head.register_forward_pre_hook(self._keep_features)
        facts = layout, head, mean, std, device
        self._again: Callable[[], TorchNet] = lambda: TorchNet(deepcopy(module), *facts)
        self._twin: TorchNet | None = None

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]
        if self._stops:
            raise _AtHead

    def _to_head(self, x: Tensor) -> Tensor:
        """The head's input, in whatever mode the network is."""
        self._stops = True
        try:
            self._module(x)
        except _AtHead:
            pass
        finally:
            self._stops = False
        assert self._features is not None
        return self._features

    def _copy(self) -> TorchNet:
        """Another network of this kind: a loss may ask this one for other models' features meanwhile."""
        if self._twin is None:
            self._hook.remove()  # it holds this network, which would be copied along
            self._twin = self._again()
            self._hook = self._head.register_forward_pre_hook(self._keep_features)
        return self._twin

    def _load(self, theta: Tensor, training: bool) -> None:
        self._flat.copy_(theta)
        if self._module.training != training:
            self._module.train(training)

    def ready(self, x: Tensor) -> Tensor:
        """Stored samples as the network takes them: bytes to 0..1, then the set's mean and deviation."""
        normal = normalised(x.to(self.device), self._mean, self._std)
        return normal.to(memory_format=self._format) if normal.ndim == 4 else normal

    def grad(
        self,
        theta: Tensor,
        statistics: Tensor,
        x: Tensor,
        targets: Tensor,
        at_features: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, float]:
        """Gradient and value of the mean cross-entropy in train mode with the norm statistics given, and
        those that follow."""
        self._load(theta, training=True)
        self._flat[self._buffers] = statistics
        self._grad.zero_()
        loss = F.cross_entropy(self._module(x), targets)
        total = loss
        if at_features is not None:
            assert self._features is not None
            total = loss + (at_features(self._features.detach()) * self._features).sum()
        torch.autograd.backward(total)
        return self._grad.clone(), self._flat[self._buffers], float(loss.detach())

    def grad_of(
        self, theta: Tensor, statistics: Tensor, loss: Callable[[AutogradNet], Tensor]
    ) -> tuple[Tensor, Tensor, float]:
        """Gradient and value of a loss of the network in train mode, and the norm statistics that follow."""
        net = self._copy()
        net._load(theta, training=True)
        net._flat[net._buffers] = statistics
        with torch.enable_grad():
            value = loss(WrittenNet(net))
        if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(
                f"the loss is {what:.80}, expected one number that depends on the network's parameters"
            )
        net._grad.zero_()
        torch.autograd.backward(value)
        return net._grad.clone(), net._flat[net._buffers], float(value.detach())

    def descend(
        self,
        theta: Tensor,
        statistics: Tensor,
        x: Tensor,
        y: Tensor,
        steps: Sequence[Tensor],
        lr: float,
        moves: Tensor,
        momentum: float = 0.0,
        decay: float = 0.0,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, list[float]]:
        """A whole phase of SGD in place: a step costs no model-sized tensor beyond autograd's own gradients."""
        self._load(theta, training=True)
        self._flat[self._buffers] = statistics
        trained = self._trained(moves)
        parameters = [parameter for parameter, _ in trained]
        velocity: list[Tensor | None] = [None] * len(trained)
        losses = []
        for numbers in steps:
            seen = _rows(x, numbers) if augment is None else augment(_rows(x, numbers))
            loss = F.cross_entropy(self._module(seen), _rows(y, numbers))
            found = torch.autograd.grad(loss, parameters, allow_unused=True) if parameters else ()
            for k, (parameter, mask) in enumerate(trained):
                velocity[k] = _stepped(parameter, mask, found[k], velocity[k], lr, momentum, decay)
            losses.append(float(loss.detach()))
            del loss, found  # the next step's gradients take their memory
        return self._flat.clone(), self._flat[self._buffers], losses

    def _trained(self, moves: Tensor) -> list[tuple[nn.Parameter, Tensor | None]]:
        """The parameters of which anything moves, each with the mask of what does (None: all of it)."""
        found: list[tuple[nn.Parameter, Tensor | None]] = []
        for name, parameter in self._module.named_parameters():
            mask = self._layout.view(moves, name)
            if parameter.requires_grad and mask.any():
                found.append((parameter, None if mask.all() else mask))
        return found

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class scores in eval mode, with the norm statistics inside `theta`."""
        return self._eval(theta, x, lambda out: out)

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """The head's input in eval mode."""

        def at_head(_: Tensor) -> Tensor:
            assert self._features is not None
            return self._features

        return self._eval(theta, x, at_head)

    def _eval(self, theta: Tensor, x: Tensor, take: Callable[[Tensor], Tensor]) -> Tensor:
        self._load(theta, training=False)
        with torch.no_grad():
            chunks = [take(self._module(part)) for part in torch.split(x, CHUNK)]
        return torch.cat(chunks)

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> float:
        """Mean cross-entropy in eval mode."""
        return float(F.cross_entropy(self.logits(theta, x).double(), y))

    def head(self, theta: Tensor, z: Tensor) -> Tensor:
        """The classifier's scores for features `z`, in eval mode."""
        self._load(theta, training=False)
        with torch.no_grad():
            scores: Tensor = self._head(z.to(self.device))
            return scores.to(z.device)

    def head_grad(self, theta: Tensor, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the classifier's mean cross-entropy at features `z`: by `theta` and by `z`, in eval
        mode."""
        self._load(theta, training=False)
        self._grad.zero_()
        here = z.detach().to(self.device).requires_grad_()
        torch.autograd.backward(F.cross_entropy(self._head(here), targets.to(self.device)))
        assert here.grad is not None
        return self._grad.clone().to(z.device), here.grad.to(z.device)

    def moments(self, theta: Tensor, x: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Count, mean and population variance per channel at each norm layer's input, in eval mode."""
        norms = norm_layers(self._module)
        found: dict[str, tuple[int, Tensor, Tensor]] = {}

        def collector(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def collect(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                values = _by_channel(layer, inputs[0])
                here = values.shape[1], values.mean(1), values.var(1, correction=0)
                found[name] = _merged(found[name], here) if name in found else here

            return collect

        hooks = [layer.register_forward_pre_hook(collector(name)) for name, layer in norms.items()]
        try:
            self._eval(theta, x, lambda out: out)
        finally:
            for hook in hooks:
                hook.remove()
        return [
            (count, mean.float(), variance.float())
            for count, mean, variance in (found[name] for name in norms)
        ]


def _rows(values: Tensor, numbers: Tensor) -> Tensor:
    """These samples: a view where they lie in a row, else a copy."""
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first == len(numbers) - 1 and bool((numbers.diff() == 1).all()):
        return values[first : last + 1]
    return values.index_select(0, numbers.to(values.device))


def _stepped(
    parameter: nn.Parameter,
    mask: Tensor | None,
    gradient: Tensor | None,
    velocity: Tensor | None,
    lr: float,
    momentum: float,
    decay: float,
) -> Tensor | None:
    """Moves a parameter in place by one step of SGD; returns its velocity, where there is momentum."""
    step = torch.zeros_like(parameter) if gradient is None else gradient
    if decay:
        step = step + decay * parameter.detach()
    if momentum:
        step = velocity = step if velocity is None else momentum * velocity + step
    _move(parameter.detach(), step if mask is None else step.masked_fill(~mask, 0.0), lr)
    return velocity


def _move(values: Tensor, step: Tensor, lr: float) -> None:
    """values -= lr * step, in two roundings; a large tensor on the CPU passes through the cache once."""
    from pfedsim.backends import native

    in_a_row = (
        values.is_contiguous() and step.is_contiguous() and values.dtype == step.dtype == torch.float32
    )
    if values.numel() > SMALL and values.device.type == "cpu" and in_a_row and native.available():
        native.move(values, step, lr)
    else:
        values.sub_(lr * step)


def normalised(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """In one new tensor, in place: three of them would cost a tenth of a native client's time."""
    y = x.to(torch.float32, copy=True)
    if x.dtype == torch.uint8:
        y.div_(255)
    return y.sub_(mean).div_(std)


def _by_channel(layer: nn.Module, inputs: Tensor) -> Tensor:
    """The layer's input as (channel, values), in float64."""
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        return inputs.flatten(-len(layer.normalized_shape)).flatten(0, -2).T.double()
    return inputs.transpose(0, 1).flatten(1).double()


def _merged(a: tuple[int, Tensor, Tensor], b: tuple[int, Tensor, Tensor]) -> tuple[int, Tensor, Tensor]:
    """Count, mean and variance of two groups of values taken together."""
    count = a[0] + b[0]
    share, apart = b[0] / count, b[1] - a[1]
    return count, a[1] + share * apart, (1 - share) * a[2] + share * b[2] + share * (1 - share) * apart**2
