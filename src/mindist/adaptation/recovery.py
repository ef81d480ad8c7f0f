r"""How well an embedding gives the summary back on clean data, and which representation does best.

For simulations that the decoder has not seen, the search should end at their own summaries. What
it misses,

.. math:: e_j = \mathbb{E}\, (s^\star_j - s_j)^2 , \qquad \frac1{d_s} \sum_j \log e_j

(the mean without its largest 2%), is the price of going through the embedding, in any units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mindist.adaptation.search import Problem, Search, View, search
from mindist.adaptation.starts import Bank
from mindist.decoders import RidgeDecoder
from mindist.features.embedding import Embedding
from mindist.features.fourier import FourierFeatures
from mindist.features.kernel import choose_bandwidth
from mindist.features.representation import candidates, make_representation
from mindist.schema import moved

HELD_OUT = 0.25
NUM_FEATURES = 256
NUM_BASIS = 200
TRIMMED = 0.02  # of the held-out datasets
MARGIN = 0.5  # of mean log squared errors: by less, errors of 1,000 simulations may differ by luck


def recovery_error(embedding: Embedding, x: Tensor, s: Tensor, generator: torch.Generator) -> float:
    """Return the mean over summaries of the log mean squared error of finding them again.

    A decoder learns from three quarters of the simulations; the rest are searched for unaided.
    """
    order = torch.randperm(len(s), generator=generator).to(s.device)
    z_bar, s = embedding.mean(x)[order], s[order].double()
    num = max(1, round(HELD_OUT * len(s)))
    decoder = RidgeDecoder(NUM_BASIS).fit(s[num:], z_bar[num:], generator=generator)
    view = View(decoder, Bank.of(s[num:], z_bar[num:], generator), decoder.held_out_error)
    no_hint = s.mean(0).expand_as(s[:num])
    # In the place of the datasets, which the squared distance does not look at, the summaries.
    found = search(view, Search(), Problem(s[:num], no_hint, z_bar[:num]), generator)
    variance = s.var(0)
    varies = variance > 0
    squared = (found.s_star - s[:num]).square()[:, varies] / variance[varies]
    # A single dataset at the edge of the simulations would decide a plain mean.
    kept = squared.sort(0).values[: max(1, round((1 - TRIMMED) * len(squared)))]
    return float(kept.mean(0).clamp(min=1e-30).log().mean())


def choose_representation(
    x: Tensor, s: Tensor, bandwidth: float | str, generator: torch.Generator | None = None
) -> str:
    """The representation that suits the shape of observations, unless another is clearly better.

    Better means that simulated summaries are found again with less error, `recovery_error`.

    Arguments:
        x: Simulated datasets `(M, N, *event)`.
        s: Their summaries `(M, d_s)`.
        bandwidth: The rule for the bandwidth, which is applied to each representation.
        generator: Draws features; by default from a fixed seed.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> centre = torch.randn(300, 1, 2, generator=generator)
        >>> x = centre + torch.randn(300, 20, 2, generator=generator)
        >>> choose_representation(x, x.mean(1), "median")
        'identity'
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    names = candidates(tuple(x.shape[2:]))
    if len(names) == 1:
        return names[0]
    if not isinstance(bandwidth, str):
        return "identity"  # a number is in the units of the data
    errors = {}
    for name in names:
        representation = make_representation(name, x)
        seen = representation(x)
        errors[name] = math.inf
        try:
            sigma = choose_bandwidth(bandwidth, seen, torch.Generator().manual_seed(0))
        except ValueError:  # most represented observations are equal
            continue
        features = FourierFeatures.draw(
            tuple(seen.shape[2:]),
            NUM_FEATURES,
            bandwidth=sigma,
            generator=torch.Generator().manual_seed(0),
        )
        features = features if x.is_cpu else moved(features, x.device)
        embedding = Embedding(features, representation)
        errors[name] = recovery_error(embedding, x, s, generator)
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < errors[names[0]] - MARGIN else names[0]
