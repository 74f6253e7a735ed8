import re
from pathlib import Path

import plain
import pytest
import small
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from pfedsim.methods import parse
from pfedsim.methods.moon import Moon

GUIDE = (Path(__file__).parents[2] / "docs" / "write-a-method.md").read_text()


def features(s, theta, x, train=False):
    module = small.module(s, theta).train(train)
    return torch.relu(module.bn(module.hidden(x))), module


def trained(s, client, theta, last, mu, tau):
    """Two epochs of SGD on cross-entropy - mu log(e^near / (e^near + e^far)), with autograd."""
    common, layout = theta, s.fed.layout
    for x, y in plain.batches(s, client) * 2:
        z, module = features(s, theta, x, train=True)
        loss = cross_entropy(module.classifier(z), y)
        with torch.no_grad():
            zc, zl = features(s, common, x)[0], features(s, last, x)[0]
        near, far = (torch.exp(cosine_similarity(z, other) / tau) for other in (zc, zl))
        loss = loss - mu * torch.log(near / (near + far)).mean()
        loss.backward()
        theta = small.flat(s, module)
        for name, parameter in module.named_parameters():
            layout.view(theta, name).sub_(0.1 * parameter.grad)
    return theta


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_three_rounds_follow_the_written_loss(backend):
    s = plain.session(Moon(mu=0.8, temperature=0.4), rounds=3, backend=backend)
    theta, last = s.fed.initial, [s.fed.initial] * 3
    for round in small.rounds(s):
        last = [trained(s, i, theta, last[i], 0.8, 0.4) for i in range(3)]
        theta = plain.mean(last, [20.0, 9.0, 33.0])
        plain.close(round.server.model, theta, 1e-4)
    assert plain.served(s, round.state)[0].equal(round.server.model)


def test_it_is_the_guides_method_whose_loss_is_written_for_autograd(tmp_path):
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if b.startswith("# moon.py")]
    (tmp_path / "moon.py").write_text(block)
    guides = parse(f"{tmp_path / 'moon.py'}:Moon(mu=0.8)")
    assert guides.autograd()
    assert guides.temperature == Moon().temperature
    assert type(guides)().mu == Moon().mu
    (*_, a), (*_, b) = (small.rounds(plain.session(m, rounds=3)) for m in (Moon(mu=0.8), guides))
    plain.close(a.server.model, b.server.model, 1e-5)


def test_without_the_contrast_and_in_the_first_round_it_is_fedavg():
    a, b = (list(small.rounds(plain.session(m, rounds=2))) for m in (Moon(mu=0), None))
    assert a[-1].server.model.equal(b[-1].server.model)
    first, *_, last = small.rounds(plain.session(Moon(mu=5), rounds=2))
    assert first.server.model.equal(b[0].server.model)
    assert not last.server.model.equal(b[-1].server.model)
