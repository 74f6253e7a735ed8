"""The works as a plain PyTorch loop: what the arithmetic costs without any framework."""

from __future__ import annotations

import random

import torch
from works import accuracy, asked, mark, network, of_client, train


def main() -> None:
    work, rounds = asked()
    torch.set_num_threads(1)
    net = network(work)
    model = {name: value.clone() for name, value in net.state_dict().items()}
    draw, trained = random.Random(42), 0
    mark("begin")
    for _ in range(rounds):
        total = {name: torch.zeros_like(value) for name, value in model.items()}
        for client in draw.sample(range(work.clients), work.cohort):
            net.load_state_dict(model)
            x, y = of_client(work, client)
            train(net, work, x, y)
            trained += work.epochs * len(y)
            for name, value in net.state_dict().items():
                total[name] += value
        model = {name: value / work.cohort for name, value in total.items()}
        mark("round")
    net.load_state_dict(model)
    print(f"TRAINED {trained} ACCURACY {accuracy(net)}")
    mark("end")


if __name__ == "__main__":
    main()
