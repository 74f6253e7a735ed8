"""Means that withstand some hostile replies. A rule turns the terms of a mean, (weight, model) pairs, into the terms
whose mean is taken instead. Entries that clients keep are NaN in every model and stay NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from pfedsim.core.settings import Defence

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 1 << 17  # entries of all models that are sorted together
Terms = Sequence[tuple[float, "Tensor"]]
taken = 0  # how many robust means this process has taken


def objection(defence: Defence, replies: int) -> str:
    """Why the rule cannot do what it promises with this many replies in a round; nothing if it can."""
    hostile = _hostile(defence, replies)
    if defence.rule in ("trimmed-mean", "krum", "multi-krum") and not hostile:
        return f"{defence.share:.0%} of a round's {replies} replies are less than one"
    if defence.rule in ("krum", "multi-krum") and replies <= 2 * hostile + 2:
        return f"Krum needs more than {2 * hostile + 2} replies in a round to withstand {hostile}, not {replies}"
    return ""


def defended(defence: Defence, sent: Tensor, terms: Terms) -> Terms:
    """The terms that the rule leaves of these; `sent`: the model that the clients started from."""
    global taken
    taken += 1
    return RULES[defence.rule](sent, terms, _hostile(defence, len(terms)))


def _hostile(defence: Defence, replies: int) -> int:
    """How many of these replies may be hostile, rounded down."""
    return int(defence.share * replies + 1e-9)


def coordinate_median(sent: Tensor, terms: Terms, hostile: int) -> Terms:
    """The median of every entry; all clients count alike. Yin et al. 2018, Definition 1."""
    return _trimmed(terms, (len(terms) - 1) // 2)


def trimmed_mean(sent: Tensor, terms: Terms, hostile: int) -> Terms:
    """The mean of every entry without its `hostile` largest and smallest values; all clients count alike. Yin et
    al. 2018, Definition 2."""
    return _trimmed(terms, hostile)


def norm_clipping(sent: Tensor, terms: Terms, hostile: int) -> Terms:
    """Steps longer than the median step are shortened to it. Sun et al. 2019, with the median as the bound."""
    lengths = [_squared(model, sent) ** 0.5 for _, model in terms]
    bound = median(lengths)
    return [
        (weight, model if length <= bound else sent + bound / length * (model - sent))
        for (weight, model), length in zip(terms, lengths, strict=True)
    ]


def krum(sent: Tensor, terms: Terms, hostile: int) -> Terms:
    """The one model that is nearest to its n - hostile - 2 nearest others. Blanchard et al. 2017."""
    return [terms[_by_krum(terms, hostile)[0]]]


def multi_krum(sent: Tensor, terms: Terms, hostile: int) -> Terms:
    """The n - hostile best models by Krum's score, with their weights. Blanchard et al. 2017, section 4."""
    best = _by_krum(terms, hostile)[: len(terms) - hostile]
    return [terms[k] for k in sorted(best)]


RULES: dict[str, Callable[[Tensor, Terms, int], Terms]] = {
    "median": coordinate_median,
    "trimmed-mean": trimmed_mean,
    "norm-clipping": norm_clipping,
    "krum": krum,
    "multi-krum": multi_krum,
}


def _trimmed(terms: Terms, cut: int) -> Terms:
    """One term: the mean of every entry without its `cut` largest and smallest values."""
    import torch

    pieces = zip(*(torch.split(model, PIECE) for _, model in terms), strict=True)
    ordered = (torch.stack(piece).sort(0).values for piece in pieces)
    return [(1.0, torch.cat([rows[cut : len(terms) - cut].double().mean(0).float() for rows in ordered]))]


def _by_krum(terms: Terms, hostile: int) -> list[int]:
    """The terms' places, best score first; of equal scores the earlier client's."""
    models = [model for _, model in terms]
    n = len(models)
    apart = [[0.0] * n for _ in models]
    for i in range(n):
        for j in range(i):
            apart[i][j] = apart[j][i] = _squared(models[i], models[j])
    near = max(1, n - hostile - 2)
    scores = [sum(sorted(row[:i] + row[i + 1 :])[:near]) for i, row in enumerate(apart)]
    return sorted(range(n), key=lambda i: (scores[i], i))


def _squared(a: Tensor, b: Tensor) -> float:
    """The squared distance over the entries that travelled."""
    import torch

    pairs = zip(torch.split(a, PIECE), torch.split(b, PIECE), strict=True)
    return sum(float((x.double() - y.double()).nan_to_num(0.0).square().sum()) for x, y in pairs)
