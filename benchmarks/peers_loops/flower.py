"""The works in Flower's simulation, one processor for each client, as many side by side as there are cores."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from works import accuracy, asked, mark, network, of_client, train

clients, server = ClientApp(), ServerApp()


@clients.train()
def train_client(message: Message, context: Context) -> Message:
    work, _ = asked()
    torch.set_num_threads(1)
    net = network(work)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = of_client(work, int(context.node_config["partition-id"]))
    train(net, work, x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Marked(FedAvg):
    """Tells the driver of every round."""

    trained = 0

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        work, _ = asked()
        self.trained += sum(work.epochs * int(r.content["metrics"]["num-examples"]) for r in replies)
        found = super().aggregate_train(server_round, replies)
        mark("round")
        return found


@server.main()
def main(grid: Grid, context: Context) -> None:
    work, rounds = asked()
    net = network(work)
    strategy = Marked(
        fraction_train=work.cohort / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
    )
    mark("begin")
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=rounds)
    torch.set_num_threads(1)
    net.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"\nTRAINED {strategy.trained} ACCURACY {accuracy(net)}")
    mark("end")


if __name__ == "__main__":
    run_simulation(
        server,
        clients,
        num_supernodes=asked()[0].clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
