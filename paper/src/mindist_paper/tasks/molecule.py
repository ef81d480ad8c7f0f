"""Coordinates of a molecule in several conformations, for the cryo-EM task.

The paper's HSP90 has no licence: `hsp90` reads or downloads it; `synthetic_chain` needs no file.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindist.threads import one_thread

HSP90_SHA256 = "218c48ca3b409124960f735304863a9b15406815ea08afe01a0bdea1fb9aeb22"
# The environment variable that may hold the path of the HSP90 file
HSP90_VARIABLE = "MINDIST_HSP90"
HSP90_URL = (  # the commit of cryoSBI that the paper's code was run with
    "https://raw.githubusercontent.com/flatironinstitute/cryoSBI/"
    "8e5832ecda626e9ab58d18cb215b5db6789533ee/tests/models/hsp90_models.pt"
)


@dataclass(frozen=True, eq=False)
class Molecule:
    """C conformations of a molecule of A atoms, ordered along its motion: `(C, 3, A)`, Angstrom."""

    name: str
    coordinates: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        checked_coordinates(self.coordinates)

    @property
    def num_conformations(self) -> int:
        """Number of conformations, C."""
        return self.coordinates.shape[0]

    @property
    def num_atoms(self) -> int:
        """Number of atoms, A."""
        return self.coordinates.shape[2]

    @classmethod
    def load(cls, path: str | os.PathLike[str], name: str | None = None) -> Molecule:
        """Load a molecule of your own: a `.pt` file of one tensor `(C, 3, A)`, in Angstrom."""
        path = _file(path)
        try:
            coordinates = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever torch meets in a file that is not its own
            why = f"got {path}, which torch.load cannot read ({type(error).__name__})"
            raise ValueError(f"path: expected a file that torch.save wrote, {why}.") from error
        coordinates = checked_coordinates(coordinates, f"path ({path})")
        return cls(path.stem if name is None else name, coordinates.float())


def hsp90(path: str | os.PathLike[str] | None = None) -> Molecule:
    """Load HSP90 in 20 conformations, 1,207 C-alpha atoms each, as in the paper."""
    given = path if path is not None else os.environ.get(HSP90_VARIABLE)
    file = _file(given) if given else _download()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != HSP90_SHA256:
        raise ValueError(
            f"path: expected the HSP90 file of cryoSBI, with SHA-256 {HSP90_SHA256}, got {file} "
            f"with SHA-256 {digest}. Fetch it again from {HSP90_URL}."
        )
    return Molecule.load(file, "HSP90")  # the hash vouches for its shape


def _file(path: str | os.PathLike[str]) -> Path:
    if not Path(path).is_file():
        got = f"got {os.fspath(path)!r}. Check the path, or {HSP90_VARIABLE}"
        raise ValueError(f"path: expected a file with coordinates, {got}.")
    return Path(path)


def _download() -> Path:
    import pooch  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        where = {"fname": "hsp90_models.pt", "path": pooch.os_cache("mindist")}
        found = pooch.retrieve(HSP90_URL, known_hash=f"sha256:{HSP90_SHA256}", **where)
    except Exception as error:  # no network, a proxy, a moved file, a changed hash
        raise OSError(
            f"Could not download HSP90 from {HSP90_URL} ({error}). Fetch the file on another "
            f"machine and pass its path, or set {HSP90_VARIABLE}; synthetic_chain() needs none."
        ) from error
    return Path(found)


BOND = 3.8  # Angstrom between consecutive C-alpha atoms of a protein
BEADS = 400  # of each domain, three domains
DOMAIN_RADIUS = 24.0  # Angstrom; 400 residues of about 140 cubic Angstrom each fill such a ball
ARM = 54.0  # Angstrom from the centre of the core to the centre of an arm
HALF_ANGLE = 35.0  # degrees between each arm and their bisector, when closed
OPENING = 20.0  # degrees by which each arm has turned in the last conformation
CLEARANCE = 4.4  # Angstrom that a bead keeps from the others where it can


@cache
def synthetic_chain() -> Molecule:
    """Build a hinged chain of 1,200 beads: two globular arms on a core that open like a V."""
    beads = _walk()
    frames = []
    for turn in torch.linspace(0, math.radians(OPENING), 20, dtype=torch.float64):
        left, core, right = beads.split(BEADS)
        left = _turn(left, core[0], -turn)
        right = _turn(right, core[-1], turn)
        frame = torch.cat((left, core, right))
        frames.append((frame - frame.mean(0)).T)
    return Molecule("synthetic chain", torch.stack(frames).float())


def _turn(points: Tensor, pivot: Tensor, angle: Tensor) -> Tensor:
    """Turn points `(n, 3)` about the y axis through the pivot `(3,)`; positive opens to +x."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    x, y, z = (points - pivot).unbind(1)
    return torch.stack((cos * x + sin * z, y, cos * z - sin * x), 1) + pivot


def _walk() -> Tensor:
    """Return the closed conformation `(1200, 3)`: one walk through the three balls."""
    generator = torch.Generator().manual_seed(90)
    tilt = math.radians(HALF_ANGLE)
    right = torch.tensor([math.sin(tilt), 0.0, math.cos(tilt)], dtype=torch.float64) * ARM
    left = right * torch.tensor([-1.0, 1.0, 1.0])
    centres = torch.stack((left, torch.zeros_like(left), right)).repeat_interleave(BEADS, 0)
    beads = centres.clone()  # the walk starts at the centre of the left arm
    with one_thread():
        for i in range(1, len(beads)):
            beads[i] = _step(beads[:i], centres[i], generator)
    return beads


def _step(beads: Tensor, centre: Tensor, generator: torch.Generator) -> Tensor:
    """Return the best of 32 next beads: in the ball, or on the way, and not crowded."""
    direction = torch.randn(32, 3, dtype=torch.float64, generator=generator)
    candidates = beads[-1] + BOND * direction / direction.norm(dim=1, keepdim=True)
    farthest = ((beads[-1] - centre).norm() - 0.8 * BOND).clamp(min=DOMAIN_RADIUS)
    excess = ((candidates - centre).norm(dim=1) - farthest).clamp(min=0)
    distances = (candidates[:, None] - beads).norm(dim=2)
    distances[:, -1] = CLEARANCE  # the bond
    crowding = (CLEARANCE - distances.amin(1)).clamp(min=0)
    best: Tensor = candidates[(2 * excess + crowding).argmin()]
    return best


def checked_coordinates(value: Any, name: str = "coordinates") -> Tensor:
    """Return positions `(C, 3, A)` of the atoms of a molecule in its conformations."""
    if not isinstance(value, Tensor) or value.dim() != 3 or value.shape[1] != 3:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        what = "C conformations of A atoms with x, y, z in Angstrom"
        raise ValueError(f"{name}: expected one tensor of shape (C, 3, A), {what}, got {got}.")
    if not value.numel() or not torch.isfinite(value).all():
        got = f"shape {tuple(value.shape)} with NaN, infinite or no values"
        raise ValueError(f"{name}: expected atoms with finite coordinates, got {got}.")
    return value
