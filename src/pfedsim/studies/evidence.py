"""What the finished runs, or the paper's own numbers, say: looked up by the functions that judge the paper's claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pfedsim.methods import METHODS
from pfedsim.studies import domains, rho
from pfedsim.studies.cells import Store
from pfedsim.studies.grid import MICRO, Path, runs
from pfedsim.studies.paper import paper, printed, wrong
from pfedsim.studies.protocol import OF_THE_PAPER, SEEDS, Choice

Case = dict[str, float]
"""accuracy in % by method"""


@dataclass(frozen=True)
class Evidence:
    """What is finished, looked up by the claims; `whose`: "ours" or the "paper"'s own numbers."""

    store: Store
    choice: Choice
    whose: str = "ours"

    def cases(self, path: Path = MICRO) -> Iterator[tuple[str, float, Case]]:
        """Label-shifted cases with at least pFedSim and one other method: set, alpha, accuracies."""
        chosen = self.choice.of(data=("cifar10", "cinic10", "tiny-imagenet", "emnist", "mnist", "fashion-mnist"), seeds=SEEDS)
        for data in chosen.data:
            for alpha in chosen.alphas:
                case = self._case(chosen, data, alpha, path)
                if "pfedsim" in case and len(case) > 1:
                    yield data, alpha, case

    def _case(self, chosen: Choice, data: str, alpha: float, path: Path) -> Case:
        if self.whose == "paper":
            return {m: p[0] for m in METHODS if path == MICRO and (p := printed("accuracy", m, data, alpha))}
        found = {m: runs(self.store, chosen, data, m, alpha).mean(path) for m in METHODS}
        return {m: v for m, v in found.items() if v is not None}

    def rhos(self) -> Iterator[tuple[str, float, dict[float, float]]]:
        """Cases with at least three values of rho: set, alpha, accuracy by rho."""
        chosen = rho.defaults(self.choice.of(data=OF_THE_PAPER))
        for data in chosen.data:
            for alpha in chosen.alphas:
                if self.whose == "paper":
                    marked = {r for r in rho.RHOS if wrong("rho", row=f"{r:g}", data=data, alpha=alpha)}
                    found = {r: p[0] for r in rho.RHOS if r not in marked and (p := printed("rho", f"{r:g}", data, alpha))}
                else:
                    every = rho.found(self.store, chosen, data, alpha)
                    found = {r: v for r in rho.RHOS if (v := every[r].mean()) is not None}
                if len(found) >= 3:
                    yield data, alpha, found

    def by_domain(self) -> Iterator[tuple[str, Case]]:
        """Feature-shifted cases: set, accuracy over all domains."""
        if self.whose == "paper":
            yield "domainnet", {m: v[-1][0] for m, v in paper()["domainnet"]["cells"].items()}
            return
        for one in domains.choices(self.choice.of(data=("domainnet", "pacs", "digit-domains"), seeds=SEEDS)):
            found = {m: runs(self.store, one, one.data[0], m, None).mean() for m in one.methods}
            case = {m: v for m, v in found.items() if v is not None}
            if "pfedsim" in case and len(case) > 1:
                yield one.data[0], case
