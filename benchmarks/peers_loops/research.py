"""The works in pfl-research's simulation, as its CIFAR-10 benchmark sets it up."""

from __future__ import annotations

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F
from works import LR, NETWORKS, Work, accuracy, asked, mark, network, of_client


def with_loss(kind: type) -> type:
    """The network with the two functions that pfl-research calls."""

    class Net(kind):  # type: ignore[misc, valid-type]
        def loss(self, x, y, is_eval=False):
            self.train(not is_eval)
            return F.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x, y, is_eval=True):
            self.eval()
            return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}

    return Net


class Marked(TrainingProcessCallback):
    """Tells the driver of every round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        mark("round")
        return False, Metrics()


class Counted:
    """Makes the clients' samples, and counts them."""

    def __init__(self, work: Work):
        self.work, self.trained = work, 0

    def __call__(self, client: int) -> PyTorchTensorDataset:
        x, y = of_client(self.work, client)
        self.trained += self.work.epochs * len(y)
        shuffled = torch.randperm(len(y))
        return PyTorchTensorDataset((x[shuffled], y[shuffled]), train_kwargs={"is_eval": False})


def main() -> None:
    work, rounds = asked()
    torch.set_num_threads(1)
    np.random.seed(42)
    plain = network(work)
    net = with_loss(NETWORKS[work.network])()
    net.load_state_dict(plain.state_dict())
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    samples = Counted(work)
    users = FederatedDataset(samples, get_user_sampler("minimize_reuse", list(range(work.clients))))
    backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()])
    mark("begin")
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=LR, local_num_epochs=work.epochs, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=100),
        callbacks=[Marked()],
        send_metrics_to_platform=False,
    )
    print(f"\nTRAINED {samples.trained} ACCURACY {accuracy(net)}")
    mark("end")


if __name__ == "__main__":
    main()
