"""Adapting any number of observed datasets, of different lengths, in bounded memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import Adaptation, Status

WINDOW_DATASETS = 1_000  # eight of the blocks that `adapt` shares out among threads
WINDOW_BYTES = 2**25  # of observed data; adaptations take a few times as much


@dataclass(frozen=True)
class StreamFailure:
    """A dataset without an adapted summary, and why.

    Example:
        >>> StreamFailure(3, "x: expected finite values, got NaN.").index
        3
    """

    index: int  # its place in the stream, from 0
    message: str  # the error


@dataclass(frozen=True)
class StreamReport:
    """The outcomes of a stream so far.

    Example:
        >>> print(StreamReport(7, 2, (StreamFailure(3, "x: expected finite observations."),)))
        10 datasets: 7 adapted, 2 unchanged, 1 failed.
          dataset 3: x: expected finite observations.
    """

    adapted: int  # how many have a summary that was moved
    unchanged: int  # how many were well specified: their observed summary is used
    failures: tuple[StreamFailure, ...]  # unusable data, a failing summary, a search in vain

    @property
    def failed(self) -> int:
        """The number of failures."""
        return len(self.failures)

    @property
    def total(self) -> int:
        """The number of datasets."""
        return self.adapted + self.unchanged + self.failed

    def __str__(self) -> str:
        counts = f"{self.adapted:,} adapted, {self.unchanged:,} unchanged, {self.failed:,} failed."
        listed = [f"  dataset {failure.index}: {failure.message}" for failure in self.failures]
        return "\n".join([f"{self.total:,} datasets: {counts}", *listed])


class AdaptationStream(Iterator[tuple[int, Adaptation]]):
    """Pairs of the index of a dataset and its adaptation, in order, computed as they are asked for.

    `MinimumDistance.adapt_stream` makes one. Datasets that failed are left out, and listed in the
    report; so is one for which no better summary was found, whose adaptation, at the observed
    summary, comes out all the same.

    Example:
        >>> failing = AdaptationStream(lambda x: x.nothing, [torch.zeros(9, 2)], torch.Size([2]))
        >>> list(failing), failing.report.failed
        ([], 1)
    """

    def __init__(
        self, adapt: Callable[..., Adaptation], datasets: Iterable[Any], event_shape: torch.Size
    ) -> None:
        if not isinstance(datasets, Iterable):
            raise TypeError(
                "datasets: expected an iterable of datasets (N, *event), such as a list or a "
                f"generator, got {type(datasets).__name__}. One dataset is for adapt."
            )
        self._adapt, self._event_shape = adapt, event_shape
        self._adapted = self._unchanged = 0
        self._failures: list[StreamFailure] = []
        self._results = self._run(iter(datasets))

    def __next__(self) -> tuple[int, Adaptation]:
        return next(self._results)

    @property
    def report(self) -> StreamReport:
        """Return counts and failures of the datasets whose turn has come."""
        failures = sorted(self._failures, key=lambda failure: failure.index)
        return StreamReport(self._adapted, self._unchanged, tuple(failures))

    def _run(self, datasets: Iterator[Any]) -> Iterator[tuple[int, Adaptation]]:
        for window in self._windows(enumerate(datasets)):
            groups: dict[tuple[Any, ...], list[int]] = {}
            for index, x in window.items():
                groups.setdefault((x.shape, x.dtype, x.device), []).append(index)
            found: dict[int, Adaptation] = {}
            for indices in groups.values():
                self._adapt_group(window, indices, found)
            for index, adaptation in sorted(found.items()):
                if adaptation.status is Status.KEPT_OBSERVED:
                    self._failures.append(StreamFailure(index, adaptation.status.message))
                elif adaptation.adapted:
                    self._adapted += 1
                else:
                    self._unchanged += 1
                yield index, adaptation

    def _windows(self, datasets: Iterator[tuple[int, Any]]) -> Iterator[dict[int, Tensor]]:
        """Yield usable datasets by index, as many as are held at once, also when reading fails."""
        window: dict[int, Tensor] = {}
        size = 0
        try:
            for index, dataset in datasets:
                try:
                    batch, single = checks.observed(dataset, self._event_shape)
                    if not single:
                        then = "Let the iterable yield its datasets one by one."
                        got = f"a batch of shape {tuple(batch.shape)}"
                        raise checks.wrong("x", "one dataset at a time", got, then)
                except Exception as error:  # of anything that is not a dataset
                    self._failures.append(StreamFailure(index, str(error)))
                    continue
                # A reader may use its memory again for the next one.
                window[index], size = batch[0].clone(), size + batch[0].nbytes
                if len(window) >= WINDOW_DATASETS or size >= WINDOW_BYTES:
                    yield window
                    window, size = {}, 0
        except Exception:
            yield window
            raise
        yield window

    def _adapt_group(self, window: Any, indices: list[int], found: dict[int, Adaptation]) -> None:
        """Adapt datasets of one shape together; where that fails, each half, down to culprits."""
        try:
            results = self._adapt(torch.stack([window[index] for index in indices]))
        except Exception as error:  # whatever a user's summary raises
            half = len(indices) // 2
            if half:
                self._adapt_group(window, indices[:half], found)
                self._adapt_group(window, indices[half:], found)
            else:
                self._failures.append(StreamFailure(indices[0], f"{type(error).__name__}: {error}"))
            return
        found |= {index: results[row] for row, index in enumerate(indices)}


__all__ = ["AdaptationStream", "StreamFailure", "StreamReport"]
