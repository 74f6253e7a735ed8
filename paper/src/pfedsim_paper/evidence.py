"""What the finished runs, or the paper's own numbers, say: looked up by the functions that judge the
paper's claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from pfedsim.experiments import Store
from pfedsim.methods import TWELVE
from pfedsim_paper import domains, rho
from pfedsim_paper.grid import MICRO, Keys, Runs, dealt, runs, set_name
from pfedsim_paper.paper import paper, printed
from pfedsim_paper.protocol import OF_THE_PAPER, SEEDS, WHOLE, Choice

LABEL_SHIFTED = ("cifar10", "cinic10", "tiny-imagenet", "emnist", "mnist", "fashion-mnist")
Case = dict[str, float]
"""accuracy in % by method"""


Name = TypeVar("Name", str, float)


def common(found: dict[Name, Runs]) -> dict[Name, Runs]:
    """The methods of which anything is there, each with the seeds that all of them have."""
    have = {m: r for m, r in found.items() if r.by_seed}
    seeds = set.intersection(*(set(r.by_seed) for r in have.values())) if have else set()
    return {m: Runs({s: r.by_seed[s] for s in sorted(seeds)}) for m, r in have.items()}


@dataclass(frozen=True)
class Evidence:
    """What is finished, looked up by the claims; `whose`: "ours" or the "paper"'s own numbers."""

    store: Store
    choice: Choice
    whose: str = "ours"

    def reduced(self, data: str) -> bool:
        """Whether our runs of one of the paper's sets are smaller than the paper's."""
        return self.whose == "ours" and data in WHOLE and not self.choice.full

    def where(self, data: str, alpha: float) -> str:
        return f"{set_name(data)} {dealt(alpha)}{', at a smaller scale' if self.reduced(data) else ''}"

    def cases(self, keys: Keys = MICRO) -> Iterator[tuple[str, float, Case]]:
        """Label-shifted cases with at least pFedSim and one other method: set, alpha, accuracies, over the
        seeds that all methods have."""
        chosen = self.choice.of(data=LABEL_SHIFTED, seeds=SEEDS)
        for data in chosen.data:
            for alpha in chosen.alphas:
                if self.whose == "paper":
                    case = {
                        m: p[0]
                        for m in TWELVE
                        if keys == MICRO and (p := printed("accuracy", m, data, alpha))
                    }
                else:
                    case = {
                        m: v
                        for m, r in self.methods(data, alpha).items()
                        if (v := r.mean(keys)) is not None
                    }
                if "pfedsim" in case and len(case) > 1:
                    yield data, alpha, case

    def methods(self, data: str, alpha: float) -> dict[str, Runs]:
        """Our runs of one case."""
        chosen = self.choice.of(seeds=SEEDS)
        return common({m: runs(self.store, chosen, data, m, alpha) for m in TWELVE})

    def rhos(self) -> Iterator[tuple[str, float, dict[float, float]]]:
        """Cases with all values of rho (of the paper: but those known to be wrong): set, alpha, accuracy by
        rho."""
        chosen = rho.defaults(self.choice.of(data=OF_THE_PAPER, seeds=SEEDS))
        for data in chosen.data:
            for alpha in chosen.alphas:
                theirs = {r: p[0] for r, p in rho.of_paper(data, alpha).items()}
                mine = {
                    r: v
                    for r, several in common(rho.found(self.store, chosen, data, alpha)).items()
                    if (v := several.mean()) is not None
                }
                if self.whose == "paper" and theirs:
                    yield data, alpha, theirs
                elif self.whose == "ours" and len(mine) == len(rho.RHOS):
                    yield data, alpha, mine

    def by_domain(self) -> Iterator[tuple[str, Case]]:
        """Feature-shifted cases: set, accuracy over all domains."""
        if self.whose == "paper":
            yield "domainnet", {m: v[-1][0] for m, v in paper()["domainnet"]["cells"].items()}
            return
        for one in domains.choices(
            self.choice.of(data=("domainnet", "pacs", "digit-domains"), seeds=SEEDS)
        ):
            found = common({m: runs(self.store, one, one.data[0], m, None) for m in one.methods})
            case = {m: v for m, r in found.items() if (v := r.mean()) is not None}
            if "pfedsim" in case and len(case) > 1:
                yield one.data[0], case
