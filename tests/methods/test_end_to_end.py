"""Methods with a gradient of their own, through the front door on both backends, against plain PyTorch loops.

A backend that ran their phases as plain steps would turn them into FedAvg: every test says how far that is."""

import copy
import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pfedsim
from pfedsim.core.seeds import generator

CLIENTS, EACH, BATCH, SEED = 4, 2, 64, 42
COMMON = {"join": 0.5, "epochs": 2, "batch": BATCH, "model": "lenet5", "seed": SEED, "workers": 1}


@pytest.fixture(scope="module")
def federation():
    return pfedsim.federate("digits", clients=CLIENTS, alpha=0.5)


def states(run):
    """Every client's final model; torch's counters of batches do not count."""
    found = [run.client(i).module.state_dict() for i in range(CLIENTS)]
    return [{k: v for k, v in state.items() if v.ndim} for state in found]


def run_of(federation, method, rounds, lr, backend):
    settings = {**COMMON, "rounds": rounds, "lr": lr, "backend": backend}
    return states(pfedsim.train(federation, method, score={"every": 0, "finetune": 0}, **settings))


class Loop:
    """A federation written out: modules, dictionaries of parameters, norm statistics that stay at home."""

    def __init__(self, federation, lr):
        alone = pfedsim.train(
            federation, "local", **{**COMMON, "rounds": 1}, score={"every": 0, "finetune": 0}
        )
        stream = random.Random(SEED)
        self.schedule = [stream.sample(range(CLIENTS), EACH) for _ in range(9)]
        unmet = next(i for i in range(CLIENTS) if i not in self.schedule[0])
        self.module = copy.deepcopy(alone.client(unmet).module)  # has never trained: the initial model
        self.buffers = {i: copy.deepcopy(dict(self.module.named_buffers())) for i in range(CLIENTS)}
        self.params = {k: p.detach().clone() for k, p in self.module.named_parameters()}
        self.data, self.partition, self.lr = federation.data, federation.partition.clients, lr

    def samples(self, client):
        """Pixels to 0..1, then by the set's mean and deviation."""
        x = torch.from_numpy(self.data.x[self.partition[client].train]).float() / 255
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.data.mean, self.data.std))
        return (x - mean) / std, torch.from_numpy(self.data.y[self.partition[client].train])

    def batches(self, client):
        x, y = self.samples(client)
        return [b for b in zip(x.split(BATCH), y.split(BATCH), strict=True) if len(b[1]) > 1]

    def train(self, client, params, loss, adjust=lambda module: None):
        """Two epochs of SGD down `loss(module, x, y)` from `params`; `adjust` may change the gradients."""
        self.module.load_state_dict({**params, **self.buffers[client]})
        self.module.train()
        sgd = torch.optim.SGD(self.module.parameters(), lr=self.lr)
        for x, y in self.batches(client) * 2:
            sgd.zero_grad()
            loss(self.module, x, y).backward()
            adjust(self.module)
            sgd.step()
        self.buffers[client] = copy.deepcopy(dict(self.module.named_buffers()))
        return {k: p.detach().clone() for k, p in self.module.named_parameters()}

    def served(self, client, params=None):
        everything = {**(params or self.params), **self.buffers[client]}
        return {k: v for k, v in everything.items() if v.ndim}


def mean(models, weights):
    total = sum(weights)
    return {k: sum(w / total * m[k] for m, w in zip(models, weights, strict=True)) for k in models[0]}


def cross_entropy(module, x, y):
    return F.cross_entropy(module(x), y)


def held_near(start, mu):
    """FedProx's loss."""

    def loss(module, x, y):
        apart = sum(((p - start[k]) ** 2).sum() for k, p in module.named_parameters())
        return cross_entropy(module, x, y) + mu / 2 * apart

    return loss


def apart(found, others):
    """The distance of two lists of models."""
    squares = [
        float(((a[k] - b[k]) ** 2).sum()) for a, b in zip(found, others, strict=True) for k in others[0]
    ]
    return math.sqrt(sum(squares))


def check(found, expected, plain, share=0.05):
    """Much nearer to the loop than to plain steps. The rest is rounding, which max pools enlarge."""
    off, effect = apart(found, expected), apart(found, plain)
    assert effect > 0.1
    assert off < share * effect


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_fedprox(federation, backend):
    loop = Loop(federation, lr=0.02)
    for sampled in loop.schedule[:3]:
        models = [loop.train(i, loop.params, held_near(loop.params, 5.0)) for i in sampled]
        loop.params = mean(models, [1] * EACH)
    found = run_of(federation, "fedprox(mu=5)", 3, 0.02, backend)
    check(
        found,
        [loop.served(i) for i in range(CLIENTS)],
        run_of(federation, "fedavg(weights=uniform)", 3, 0.02, backend),
    )


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_feddyn(federation, backend):
    """Loss gradient clipped at 1, - v_i + alpha (theta - start); v_i <- v_i - alpha (theta_i - start); h over
    all clients; theta <- mean - h / alpha."""
    alpha, clip = 0.5, 1.0
    loop = Loop(federation, lr=0.02)
    v = {i: {k: 0 * p for k, p in loop.params.items()} for i in range(CLIENTS)}
    h = {k: 0 * p for k, p in loop.params.items()}
    for sampled in loop.schedule[:4]:
        start, models = loop.params, []
        for i in sampled:

            def adjust(module, i=i, start=start):
                nn.utils.clip_grad_norm_(module.parameters(), clip)
                for k, p in module.named_parameters():
                    p.grad += alpha * (p.detach() - start[k]) - v[i][k]

            model = loop.train(i, start, cross_entropy, adjust)
            v[i] = {k: v[i][k] - alpha * (model[k] - start[k]) for k in model}
            h = {k: h[k] - alpha / CLIENTS * (model[k] - start[k]) for k in model}
            models.append(model)
        plain = mean(models, [1] * EACH)
        loop.params = {k: plain[k] - h[k] / alpha for k in plain}
    found = run_of(federation, f"feddyn(alpha={alpha}, clip={clip})", 4, 0.02, backend)
    check(
        found,
        [loop.served(i) for i in range(CLIENTS)],
        run_of(federation, "fedavg(weights=uniform)", 4, 0.02, backend),
    )


def written_out_similarity(a, b):
    """Eq. 3: the mean over the classes of -log(1 - max(0, cos))."""
    cosines = [float(F.cosine_similarity(p, q, dim=0)) for p, q in zip(a, b, strict=True)]
    return sum(-math.log(1 - min(max(0.0, c), 1 - 1e-6)) for c in cosines) / len(cosines)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_pfedsim_warmed_up_by_fedprox(federation, backend):
    """Two rounds held near the common model, then two of plain steps from mixed extractors."""
    loop, head = Loop(federation, lr=0.02), "classifier"
    for sampled in loop.schedule[:2]:
        models = [loop.train(i, loop.params, held_near(loop.params, 5.0)) for i in sampled]
        loop.params = mean(models, [1] * EACH)
    own = dict.fromkeys(range(CLIENTS), loop.params)
    phi = {i: {i: 1.0} for i in range(CLIENTS)}
    for sampled in loop.schedule[2:4]:
        trained = {}
        for i in sampled:
            mixed = mean([own[j] for j in phi[i]], list(phi[i].values()))
            start = {k: own[i][k] if k.startswith(head) else mixed[k] for k in mixed}
            trained[i] = loop.train(i, start, cross_entropy)
        own |= trained
        i, j = sampled
        likeness = written_out_similarity(*(own[k][f"{head}.weight"] for k in sampled))
        phi[i][j] = phi[j][i] = likeness
    found = run_of(federation, "pfedsim(rho=0.5, warmup=fedprox(mu=5))", 4, 0.02, backend)
    plain = run_of(federation, "pfedsim(rho=0.5, warmup=fedavg(weights=uniform))", 4, 0.02, backend)
    check(found, [loop.served(i, own[i]) for i in range(CLIENTS)], plain)


class Generated:
    """FedGen's generator as an ordinary module with torch's Adam, drawing as the run draws."""

    def __init__(self, noise, classes, hidden, features):
        first, last = nn.Linear(noise + classes, hidden), nn.Linear(hidden, features)
        rng = generator(SEED, "init")
        for layer in (first, last):
            bound = layer.in_features**-0.5
            values = torch.empty((layer.in_features + 1) * layer.out_features)
            nn.utils.vector_to_parameters(values.uniform_(-bound, bound, generator=rng), layer.parameters())
        self.net = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), last)
        self.adam = torch.optim.Adam(self.net.parameters())
        self.noise, self.classes = noise, classes

    def __call__(self, y, rng):
        noise = torch.randn(len(y), self.noise, generator=rng)
        return self.net(torch.cat([noise, F.one_hot(y, self.classes)], 1))

    def learn(self, heads, counts, number, steps, batch):
        """Towards features whose class the round's classifiers agree on, by their share of the class."""
        rng, seen = generator(SEED, "aggregate/train", number), counts.sum(0).nonzero()[:, 0]
        self.adam.param_groups[0]["lr"] = 3e-3 * 0.98**number
        self.net.train()
        for _ in range(steps):
            y = seen[torch.randint(len(seen), (batch,), generator=rng)]
            z = self(y, rng)
            losses = [
                (c[y] / counts.sum(0)[y] * F.cross_entropy(F.linear(z, *head), y, reduction="none")).mean()
                for c, head in zip(counts, heads, strict=True)
            ]
            self.adam.zero_grad()
            sum(losses).backward()
            self.adam.step()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("labels", ["all", "own"])
def test_fedgen(federation, backend, labels):
    """CE + beta_t KL(phi(G(y)) || f(x)) + alpha_t batch'/batch CE(phi(G(y')), y'), from round 1 on."""
    loop, made = Loop(federation, lr=0.02), Generated(8, 10, 16, 84)
    sizes = {i: len(loop.samples(i)[1]) for i in range(CLIENTS)}
    count = {i: loop.samples(i)[1].bincount(minlength=10).float() for i in range(CLIENTS)}
    known = torch.zeros(10)
    for number, sampled in enumerate(loop.schedule[:3]):
        made.net.eval()
        models, faded = [], 3.0 * 0.98**number
        for i in sorted(sampled):
            rng = generator(SEED, "train", number, i)
            classes = (known if labels == "all" else count[i]).nonzero()[:, 0]

            def loss(module, x, y, rng=rng, classes=classes, number=number, faded=faded):
                if number == 0:
                    return cross_entropy(module, x, y)
                log_p = module(x).log_softmax(1)
                target = module.classifier(made(y, rng)).softmax(1).detach()
                kl = F.kl_div(log_p, target, reduction="batchmean")
                drawn = classes[torch.randint(len(classes), (16,), generator=rng)]
                taught = F.cross_entropy(module.classifier(made(drawn, rng).detach()), drawn)
                return F.nll_loss(log_p, y) + faded * (kl + 16 / BATCH * taught)

            models.append(loop.train(i, loop.params, loss))
        heads = [(m["classifier.weight"], m["classifier.bias"]) for m in models]
        made.learn(heads, torch.stack([count[i] for i in sorted(sampled)]), number, steps=4, batch=16)
        loop.params = mean(models, [sizes[i] for i in sorted(sampled)])
        known = known + sum(count[i] for i in sampled)
    options = "alpha=3, beta=3, noise=8, hidden=16, steps=4, batch=16, lr=0.003"
    found = run_of(federation, f"fedgen({options}, labels={labels})", 3, 0.02, backend)
    check(found, [loop.served(i) for i in range(CLIENTS)], run_of(federation, "fedavg", 3, 0.02, backend))
