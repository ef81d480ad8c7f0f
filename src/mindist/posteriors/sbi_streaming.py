"""sbi's NPE on a bank of simulations that is larger than memory.

sbi keeps all simulations in memory, but asks a method of its own for the batches of an epoch. Here
that method reads them from the bank; sbi's network, loss, optimiser and early stopping stay as they
are. Like `sbi_bridge.py`, this file imports sbi.
"""

from __future__ import annotations

from typing import Any

import torch
from sbi.inference import NPE
from torch import Tensor, nn

from mindist.posteriors import bank_loader
from mindist.posteriors.bank_loader import BankLoader, KeptData, parameters_and_summaries
from mindist.protocols import StoredSimulations, is_bank

SAMPLE_BYTES = 2**26  # of a bank's data, from which sbi builds a network


class StreamedNPE(NPE):  # type: ignore[misc]  # sbi is not typed
    """NPE whose batches come from a bank.

    The simulations that are appended to it are a sample, from which sbi takes the shapes and the
    scales of its network.

    Arguments:
        kept: The data of the bank.
        arguments: Of sbi's NPE.
        options: Of sbi's NPE.
    """

    def __init__(self, kept: KeptData, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kept = kept

    def get_dataloaders(
        self,
        starting_round: int = 0,
        training_batch_size: int = 200,
        validation_fraction: float = 0.1,
        resume_training: bool = False,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> tuple[BankLoader, BankLoader]:
        """As of sbi, whose method it is: for training and, the last of the bank, validation."""
        del resume_training, dataloader_kwargs
        appended, _, _ = self.get_simulations(starting_round)
        self.train_indices = torch.arange(len(appended))  # sbi builds the network from these
        rows, size = self._kept.rows, training_batch_size
        training, validation = rows.tensor_split([int((1 - validation_fraction) * len(rows))])
        return (
            BankLoader(self._kept, training, size, shuffle=True),
            BankLoader(self._kept, validation, size, shuffle=False),
        )


def material(
    theta: Tensor | StoredSimulations, x: Tensor | None, embedding_net: nn.Module | None
) -> tuple[Tensor, Tensor, KeptData | None]:
    """What `train_npe` was given: parameters, what to condition on, and where there is more.

    Arguments:
        theta: Parameters `(M, d_theta)`, or a bank.
        x: What to condition on; None beside a bank.
        embedding_net: Of datasets; without one a bank's summaries are conditioned on.

    Returns:
        Everything, and None; or a sample, and the data of a bank that is larger than memory.
    """
    if isinstance(theta, Tensor):
        if x is None:
            raise TypeError(
                "x: expected summaries (M, d_s), or datasets with an embedding net, beside the "
                "parameters, got None. Only a bank of simulations is passed alone, as theta."
            )
        return theta, x, None
    if not is_bank(theta):
        raise TypeError(
            "theta: expected parameters (M, d_theta) as a tensor, or a bank of simulations, got "
            f"{type(theta).__name__}. Convert an array with torch.as_tensor."
        )
    if x is not None:
        raise TypeError("x: expected None beside a bank, which has its own. Leave x out.")
    if embedding_net is None:
        every, s = parameters_and_summaries(theta)
        there = torch.isfinite(s).all(1)
        return every[there], s[there], None
    return _data(KeptData(theta), next((p.device for p in embedding_net.parameters()), None))


def _data(kept: KeptData, device: torch.device | None) -> tuple[Tensor, Tensor, KeptData | None]:
    """All data of a small bank, or a sample of those of a large one."""
    whole = kept.nbytes <= bank_loader.POOL_BYTES
    size = len(kept.rows) if whole else max(1, SAMPLE_BYTES // kept.dataset_bytes)
    theta, x = kept.read(kept.rows[:size])
    return theta.to(device), x.to(device), None if whole else kept


__all__ = ["StreamedNPE", "material"]
