r"""Random Fourier features of the Gaussian kernel, and streamed mean embeddings.

.. math::
    z(x) = \sqrt{2/K}\, [\cos(x W), \sin(x W)], \qquad
    W \in \mathbb{R}^{D \times K/2}, \quad W_{ij} \sim \mathcal{N}(0, \sigma^{-2}), \qquad
    \mathbb{E}\,\langle z(x), z(y) \rangle = k(x, y) ,

so that the squared MMD between two samples is close to the squared distance of their mean
embeddings :math:`\bar z = \frac{1}{N} \sum_n z(x_n)` (equation 2 of the paper). One cosine with a
random phase for each frequency, as in scikit-learn's `RBFSampler` and so in the paper's code, would
have a larger variance (docs/method.md).

References:
    Rahimi and Recht, Random Features for Large-Scale Kernel Machines, NeurIPS 2007.
    Sutherland and Schneider, On the Error of Random Fourier Features, UAI 2015.
    Yu et al., Orthogonal Random Features, NeurIPS 2016.
    Avron et al., Quasi-Monte Carlo Feature Maps for Shift-Invariant Kernels, JMLR 17 (2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mindist.threads import each_in_a_thread

# Bytes of phases computed at once: their cosines and sines are taken before they leave the cache.
# Time of the mean at D = 2, K = 512, relative to the bare multiply and cosine, on one thread:
# 1.5 in blocks of 2^19 bytes, 1.16 to 1.18 of 2^20, 1.08 to 1.18 of 2^21.
BLOCK_BYTES = 2**21
# Products of at most 7 terms are twice as fast in NumPy as in torch, but BLAS starts threads of its
# own, beside ours, for more multiplications than these.
THIN, SERIAL = range(2, 8), 2**18

# The largest dimension of a Sobol sequence. Orthogonal frequencies are better from 16 on
# (docs/method.md, "Features"); the results in docs/results have Sobol sequences up to here.
SOBOL_DIMENSIONS = 64


@dataclass(frozen=True)
class FourierFeatures:
    r"""A drawn feature map :math:`z : \mathbb{R}^{event} \to \mathbb{R}^K`.

    Its weights are drawn once and stored: the same map embeds the simulations and the observations,
    which are flattened. Computation happens in the precision of the data.

    Arguments:
        weight: Frequencies `(D, K/2)`, float64, with D the number of elements of an event.
        event_shape: Shape of one observation.
        bandwidth: The kernel's standard deviation, from which `weight` was drawn.

    Example:
        >>> z = FourierFeatures.draw((2,), 4, bandwidth=1.0, generator=torch.Generator())
        >>> z(torch.zeros(3, 7, 2)).shape
        torch.Size([3, 7, 4])
        >>> z.mean(torch.zeros(3, 7, 2)).shape
        torch.Size([3, 4])
    """

    weight: Tensor
    event_shape: torch.Size
    bandwidth: float

    @classmethod
    def draw(
        cls,
        event_shape: tuple[int, ...],
        num_features: int,
        *,
        bandwidth: float,
        generator: torch.Generator,
        frequencies: str = "random",
    ) -> FourierFeatures:
        """Draw the frequencies of `num_features` features, an even number, each with the same law.

        `"random"` ones are independent normals. `"sobol"` ones are evenly spread, for a smaller
        error of the kernel: normal quantiles of a scrambled Sobol sequence up to
        `SOBOL_DIMENSIONS`, `"orthogonal"` ones, which any dimension has, in more.
        """
        shape = (math.prod(event_shape), num_features // 2)
        many = shape[0] > SOBOL_DIMENSIONS
        if frequencies == "orthogonal" or (frequencies == "sobol" and many):
            normal = _orthogonal_normal(*shape, generator)
        elif frequencies == "sobol":
            normal = _sobol_normal(*shape, generator)
        else:
            normal = torch.randn(shape, dtype=torch.float64, generator=generator)
        return cls(normal / bandwidth, torch.Size(event_shape), bandwidth)

    @property
    def num_features(self) -> int:
        """K, the length of a feature vector."""
        return 2 * self.weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Return features `(..., K)` of observations `(..., *event)`.

        Differentiable; faster inside `torch.no_grad()`.
        """
        batch_shape = x.shape[: x.dim() - len(self.event_shape)]
        rows = x.reshape(batch_shape.numel(), len(self.weight))
        weight = self.weight.to(x.dtype)
        if torch.is_grad_enabled():
            phase = rows @ weight
            features = torch.cat([phase.cos(), phase.sin()], dim=1) * self.scale
        else:
            features = x.new_empty(len(rows), self.num_features)
            size = self._block_rows(x)
            phase = x.new_empty(min(size, len(rows)), weight.shape[1])
            for block, out in zip(rows.split(size), features.split(size), strict=True):
                _waves(block, weight, phase, *out.chunk(2, dim=1))
            features.mul_(self.scale)
        return features.reshape(*batch_shape, self.num_features)

    @torch.no_grad()
    def mean(self, x: Tensor) -> Tensor:
        """Return mean embeddings `(B, K)` of datasets `(B, N, *event)`.

        Cache-sized blocks of observations are embedded and summed, on as many threads as torch
        has; beyond input and output this takes a few MB for each thread, whatever B and N are.
        """
        (num, num_obs), weight = x.shape[:2], self.weight.to(x.dtype)
        half, rows = weight.shape[1], self._block_rows(x)
        parts = max(1, -(-num_obs // rows))  # of each dataset
        length = -(-num_obs // parts)  # observations of a part
        group = max(1, rows // max(1, num_obs))  # whole datasets at a time
        sums = x.new_empty(num, parts, 2, half)
        blocks = [(b, part) for b in range(0, num, group) for part in range(parts)]
        threads = min(torch.get_num_threads(), len(blocks))
        room = x.new_empty(threads, 2, min(group, num) * length, half)

        def add_up(worker: int) -> None:
            for b, part in blocks[worker::threads]:
                block = x[b : b + group, part * length : (part + 1) * length]
                data = block.reshape(block.shape[0] * block.shape[1], len(weight))
                both = room[worker, :, : len(data)]
                _waves(data, weight, both[1], *both)  # the sines take the place of the phases
                out = sums[b : b + group, part].transpose(0, 1)
                torch.sum(both.view(2, *block.shape[:2], half), 2, out=out)
                out.mul_(self.scale / max(1, num_obs))

        each_in_a_thread(add_up, range(threads))
        return (sums[:, 0] if parts == 1 else sums.sum(1)).flatten(1)

    @property
    def scale(self) -> float:
        """The largest value of a feature."""
        return math.sqrt(2 / self.num_features)

    def _block_rows(self, x: Tensor) -> int:
        return max(1, BLOCK_BYTES // max(1, self.weight.shape[1] * x.element_size()))


def _waves(rows: Tensor, weight: Tensor, phase: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Write cosines and sines of `(n, D)` times `(D, H)`; the sines may replace the phases."""
    phase = phase[: len(rows)]
    single = phase.dtype == torch.float32 and phase.device.type == "cpu"
    if single and len(weight) in THIN:
        size = max(1, SERIAL // weight.numel())
        for few, out in zip(rows.split(size), phase.split(size), strict=True):
            np.matmul(few.numpy(), weight.numpy(), out=out.numpy())
    else:
        torch.mm(rows, weight, out=phase)
    if single:  # NumPy's float32 cosine takes .5 ns, torch's 1.3 ns; in float64 torch's is faster
        np.cos(phase.numpy(), out=cosine.numpy())
        np.sin(phase.numpy(), out=sine.numpy())
    else:
        torch.cos(phase, out=cosine)
        torch.sin(phase, out=sine)


def _sobol_normal(dim: int, num: int, generator: torch.Generator) -> Tensor:
    """Normal quantiles `(dim, num)` of a scrambled Sobol sequence."""
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed)
    uniform: Tensor = engine.draw(num, dtype=torch.float64)
    # A coordinate of exactly 0 has no quantile; the sequence has 30 bits.
    normal: Tensor = torch.special.ndtri(uniform.clamp(2.0**-31, 1 - 2.0**-31))
    return normal.T.contiguous()


def _orthogonal_normal(dim: int, num: int, generator: torch.Generator) -> Tensor:
    """Normal vectors `(dim, num)`, orthogonal within each block of `dim`.

    A block is uniform among orthogonal ones (the Q of a normal matrix, its signs fixed), and each
    column has the length of an independent normal vector.
    """
    normal = torch.randn(dim, num, dtype=torch.float64, generator=generator)
    factors = [torch.linalg.qr(block) for block in normal.split(dim, dim=1)]
    lengths = torch.randn(dim, num, dtype=torch.float64, generator=generator).norm(dim=0)
    return torch.cat([q * r.diagonal().sign() for q, r in factors], 1).mul_(lengths)
