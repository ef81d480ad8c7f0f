r"""One observed vector of which entries are wrong or missing: the sibling of `MinimumDistance`.

.. math:: p_{\mathrm{robust}}(\theta \mid y) = \tfrac1J \textstyle\sum_j p(\theta \mid x^{j}),
    \qquad x^{j} \sim p(x \mid y_{K_j}), \quad K_j \sim \exp(-Q(K) / 2) ,

where K are the entries to believe and the others are drawn given them (`mindist.entries.search`).
Where p is right on simulations and only entries outside K are wrong, the average is right too:
:math:`p(\theta \mid y_K) = \int p(\theta \mid x) p(x \mid y_K)`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindist import checks, storage
from mindist.entries import CHAINS, Knowledge, completed, learn
from mindist.entries.fitting import correlated_windows, labels_of
from mindist.entries.search import Vectors
from mindist.protocols import Array
from mindist.result import Completion, EntryDetection, EntryStatus
from mindist.schema import Record, pack

LEAST_SIMULATIONS = 200  # a fifth of them is held out, and 40 p-values are the least that say .05
MOST_NUMBERS = 2**28  # kept of the simulations: 1 GB; of more, a random part
DRAWS = 2  # for each chain: 32 completed vectors
MOST_ENTRIES = 4_096


class Entrywise:
    r"""Find wrong entries of one observed vector; complete it without these and missing ones.

    For posteriors that were trained on one vector per object: bands of a galaxy, a series, an
    image, or the summaries themselves. NaN is a missing entry; an infinite one counts as wrong.

    Warning:
        Entries are wrong as far as the others contradict them. Where more than 40% are wrong
        together, in a way that some simulation explains, nobody can tell.

    Arguments:
        groups: Entries that fail together: the group of each entry, integers of the shape of a
            vector; `"auto"` for windows of neighbours as long as they are correlated (blocks of a
            series, patches of an image); by default each entry is on its own.
        alpha: Level: the share of clean vectors of which any entry is set aside.
        seed: Seed of everything random.

    Example:
        >>> x = torch.randn(2_000, 1) + 0.1 * torch.randn(2_000, 8)
        >>> entries = Entrywise().fit(x)
        >>> entries.adapt(torch.tensor([0.1, -0.1, 3.0, 0.0, 0.2, torch.nan, 0.1, 0.0]))
        Completion(misspecified, p_value=0.00249..., 1 entries set aside, 1 missing)
    """

    def __init__(self, *, groups: Any = None, alpha: float = 0.05, seed: int = 0) -> None:
        if isinstance(groups, str):
            checks.choice(groups, ("auto",), "groups")
        self.groups = groups
        self.alpha = alpha
        self.seed = checks.seed(seed)

    @property
    def alpha(self) -> float:
        """The level, which may be set at any time: nothing has to be fitted again."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        said = "a level between 0 and 1"
        self._alpha = checks.number(value, "alpha", said, lambda a: 0 < a < 1, "The usual is 0.05.")

    def fit(self, x: Array) -> "Entrywise":
        """Learn from simulated vectors `(M, *event)` how entries hang together; return self."""
        data = checks.as_tensor(x, "x").detach().cpu()
        if data.dim() < 2 or len(data) < LEAST_SIMULATIONS or not data[0].numel():
            said = f"at least {LEAST_SIMULATIONS} simulated vectors (M, *event)"
            then = "Simulate more; a posterior over 14 bands has x of shape (M, 14)."
            raise checks.wrong("x", said, f"shape {tuple(data.shape)}", then)
        event, flat = data.shape[1:], data.flatten(1)
        if event.numel() > MOST_ENTRIES:
            then = "Fit to the summaries or principal components that the posterior is given."
            raise checks.wrong("x", f"at most {MOST_ENTRIES:,} entries", event.numel(), then)
        if not (finite := checks.finite_rows(flat)).all():
            got = f"{int((~finite).sum())} vectors with NaN or infinite entries"
            then = "Leave them out: missing entries belong to observed vectors only."
            raise checks.wrong("x", "finite simulated vectors", got, then)
        generator = torch.Generator().manual_seed(self.seed)
        most = max(LEAST_SIMULATIONS, MOST_NUMBERS // event.numel())
        flat = flat[torch.randperm(len(flat), generator=generator)[:most]]
        auto = isinstance(self.groups, str)
        labels = correlated_windows(flat, event) if auto else labels_of(self.groups, event)
        self.fitted_ = learn(flat, labels, self.alpha, self.seed)
        self.event_shape, self.dtype = event, data.dtype
        return self

    def detect(self, x: Array, *, errors: Array | None = None) -> EntryDetection:
        """Test whether one vector `(*event)` or a batch `(B, *event)` could have been simulated.

        NaN is a missing entry. `errors` are standard deviations of noise that entries have beyond
        the simulations', of a shape that broadcasts to that of `x`; by default none.
        """
        seen = Seen(self, x, errors)
        result = EntryDetection(**seen.facts(self), alpha=self.alpha)
        return result[0] if seen.single else result

    def adapt(self, x: Array, *, errors: Array | None = None) -> Completion:
        """Detect; set aside entries that simulations do not explain; complete the vectors.

        Arguments as for `detect`; completed vectors are drawn without the noise of `errors`.
        """
        seen = Seen(self, x, errors)
        facts = seen.facts(self)
        result = Completion(**facts, **seen.complete(self, facts), alpha=self.alpha)
        return result[0] if seen.single else result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a folder (safetensors plus JSON), simulations included."""
        config, tensors = pack(self._fitted())
        config |= {
            "event_shape": list(self.event_shape),
            "precision": str(self.dtype).removeprefix("torch."),
            "num_groups": len(self._fitted().search.groups.members),
            "alpha": self.alpha,
            "seed": self.seed,
        }
        storage.write_artefact(path, "Entrywise", config, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Entrywise":
        """Read an estimator that `save` wrote."""
        config, tensors = storage.read_artefact(path, "Entrywise")
        record = Record.open(Path(path), config, tensors)
        event = record.shape("event_shape")
        record.axes |= {"D": event.numel(), "G": record.whole("num_groups", 1, event.numel())}
        knowledge = record.read(Knowledge)
        if not knowledge.search.consistent(event.numel()) or (knowledge.null.diff() < 0).any():
            why = "groups do not name every entry once, or scales or ranks are out of range"
            raise storage.damaged(record.file, why)
        dtype = getattr(torch, record.word("precision", ("float32", "float64")))
        with record.naming():
            made = cls(alpha=record.get("alpha"), seed=record.get("seed"))
        made.groups = knowledge.search.groups.labels.view(event)
        made.event_shape, made.dtype, made.fitted_ = event, dtype, knowledge
        return made

    def to(self, device: str | torch.device) -> "Entrywise":
        """Return self: it computes on the CPU, whatever the device of the posterior."""
        checks.device(device)
        return self

    def _fitted(self) -> Knowledge:
        if not hasattr(self, "fitted_"):
            raise RuntimeError(
                "This Entrywise is not fitted. Call fit(x) with simulated vectors of shape "
                "(M, *event) first."
            )
        return self.fitted_

    def __repr__(self) -> str:
        state = "not fitted"
        if hasattr(self, "fitted_"):
            shape, num = tuple(self.event_shape), len(self.fitted_.search.bank.z)
            state = f"fitted to vectors of shape {shape}, {num:,} simulations"
        return f"Entrywise(alpha={self.alpha}, {state})"


class Seen:
    """A checked batch of observed vectors, and what the search found about it."""

    def __init__(self, entrywise: Entrywise, x: Array, errors: Array | None) -> None:
        self.knowledge, event = entrywise._fitted(), entrywise.event_shape
        x = checks.as_tensor(x, "x").detach().cpu()
        self.single = x.shape == event
        if x.shape[x.dim() - len(event) :] != event or x.dim() - len(event) not in (0, 1):
            batch = ", ".join(map(str, ("B", *event)))
            said = f"one vector of shape {tuple(event)} or a batch of shape ({batch})"
            then = "Entries that were not observed are NaN, not left out."
            raise checks.wrong("x", said, f"shape {tuple(x.shape)}", then)
        self.x = (x[None] if self.single else x).to(entrywise.dtype)
        flat, search = self.x.flatten(1), self.knowledge.search
        noise = self._noise(errors, x).to(torch.float64) / search.bank.scale.square()
        observed = torch.isfinite(flat) & torch.isfinite(noise)
        y = torch.where(observed, search.bank.units(flat), 0.0)
        self.vectors = Vectors(y, observed, torch.where(observed, noise, 0.0))
        self.infinite = torch.isinf(flat)
        self.found, self.chains = search(self.vectors)

    def _noise(self, errors: Array | None, x: Tensor) -> Tensor:
        """Return checked variances `(B, D)`."""
        if errors is None:
            return torch.zeros(self.x.shape).flatten(1)
        sd = checks.as_tensor(errors, "errors").detach().cpu().double()
        try:
            sd = sd.expand(x.shape)
        except RuntimeError:
            said = f"a shape that broadcasts to that of x, {tuple(x.shape)}"
            raise checks.wrong("errors", said, f"shape {tuple(sd.shape)}") from None
        if (sd < 0).any() or torch.isnan(sd).any():
            then = "An entry without further noise has 0, one that is worth nothing infinity."
            raise checks.wrong("errors", "standard deviations of at least 0", "others", then)
        return sd.square().reshape(len(self.x), -1)

    def facts(self, entrywise: Entrywise) -> dict[str, Any]:
        """Return what `EntryDetection` says."""
        found, bank, shape = self.found, self.knowledge.search.bank, self.x.shape
        statistic = torch.where(self.infinite.any(1), torch.inf, found.statistic)
        p_value = self.knowledge.p_value(statistic)
        mean = (self.vectors.y - found.residual) * bank.scale + bank.centre
        spread = found.variance.clamp(min=0).sqrt() * bank.scale
        return {
            "x_obs": self.x,
            "p_value": p_value,
            "misspecified": p_value <= entrywise.alpha,
            "missing": torch.isnan(self.x),
            "predicted": mean.to(self.x.dtype).view(shape),
            "spread": spread.to(self.x.dtype).view(shape),
        }

    def complete(self, entrywise: Entrywise, facts: dict[str, Any]) -> dict[str, Any]:
        """Return what `Completion` says beyond that."""
        strange, search, shape = facts["misspecified"], self.knowledge.search, self.x.shape
        vectors = self.vectors
        sets = vectors.observed[:, None].repeat(1, CHAINS, 1)
        sets[strange] = self.chains[strange]
        flat = self.x.flatten(1)
        full = flat[:, None].repeat(1, CHAINS * DRAWS, 1)
        unsure = strange | ~(vectors.observed & (vectors.noise == 0)).all(1)
        for rows in unsure.nonzero()[:, 0].split(search.rows(CHAINS)) if unsure.any() else ():
            part, seed, odd = vectors[rows], entrywise.seed, strange[rows]
            pool = search.pool(part, sets[rows])
            if odd.any():
                sets[rows[odd]] = search.sample(part[odd], sets[rows[odd]], pool[odd], seed)
            how = (DRAWS, self.knowledge.widening, seed)
            drawn = completed(search, part, sets[rows], pool, *how)[1]
            drawn = (drawn * search.bank.scale + search.bank.centre).to(flat.dtype)
            exact = (sets[rows] & (part.noise == 0)[:, None]).repeat_interleave(DRAWS, 1)
            full[rows] = torch.where(exact, full[rows], drawn)
        aside = (vectors.observed[:, None] & ~sets).double().mean(1)
        score = torch.where(self.infinite, 1.0, aside).to(flat.dtype)
        adapted = ~(sets & (vectors.noise == 0)[:, None]).flatten(1).all(1)
        return {
            "outlier_score": score.view(shape),
            "outliers": (score > 0.5).view(shape),
            "completed": full.view(len(flat), CHAINS * DRAWS, *shape[1:]),
            "adapted": adapted,
            "status": tuple(self._status(strange, adapted, score > 0.5)),
        }

    def _status(self, strange: Tensor, adapted: Tensor, wrong: Tensor) -> Iterator[EntryStatus]:
        """Yield the status of each vector."""
        columns = (strange, adapted, wrong.any(1), self.found.left, self.vectors.observed.any(1))
        for odd, drawn, some, more, seen in zip(*(c.tolist() for c in columns), strict=True):
            if not seen:
                yield EntryStatus.NOTHING_OBSERVED
            elif odd and more:
                yield EntryStatus.UNEXPLAINED
            elif odd:
                yield EntryStatus.SET_ASIDE if some else EntryStatus.DOUBTED
            else:
                yield EntryStatus.FILLED_IN if drawn else EntryStatus.AS_OBSERVED
