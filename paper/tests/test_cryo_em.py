"""The cryo-EM task: image formation against exact sums, laws of the views, molecules."""

import math
import sys
import types

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mindist_paper.tasks import CryoEMTask
from mindist_paper.tasks import molecule as molecules
from mindist_paper.tasks.cryo_em import image_statistics
from mindist_paper.tasks.image_formation import Microscope, standardise
from mindist_paper.tasks.molecule import HSP90_VARIABLE, Molecule, hsp90, synthetic_chain


@pytest.fixture(scope="module")
def chain() -> Molecule:
    return synthetic_chain()


@pytest.fixture(scope="module")
def cryo(chain: Molecule) -> CryoEMTask:
    return CryoEMTask(chain)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_density(points: Tensor, sigma: Tensor, centres: Tensor) -> Tensor:
    """The sum over atoms of Gaussians at the pixel centres, in float64, one image at a time."""
    images = []
    for (x, y), scale in zip(points.double(), sigma.double(), strict=True):
        rows = torch.exp(-0.5 * ((centres[:, None] - x) / scale) ** 2)
        columns = torch.exp(-0.5 * ((centres[:, None] - y) / scale) ** 2)
        images.append(rows @ columns.T / (2 * math.pi * scale**2))
    return torch.stack(images)


def exact_image(density: Tensor, defocus: float, b_factor: float) -> np.ndarray:
    """The transfer function applied with a full complex transform, from its printed formula."""
    k = np.fft.fftfreq(len(density), 4.0)
    k2 = k[:, None] ** 2 + k[None, :] ** 2
    chi = math.pi * 0.019866 * (defocus * 1e4) * k2
    ctf = -(0.1 * np.cos(chi) + math.sqrt(1 - 0.1**2) * np.sin(chi)) * np.exp(-b_factor * k2 / 2)
    return np.fft.ifft2(np.fft.fft2(density.numpy()) * ctf).real


def test_rotations_have_the_uniform_law():
    view, _ = Microscope().draw(20_000, seeded(1))
    rotation = view.rotation.double()
    identity = torch.eye(3, dtype=torch.float64).expand(20_000, 3, 3)
    torch.testing.assert_close(rotation @ rotation.mT, identity, atol=1e-5, rtol=0)
    standard_error = math.sqrt(1 / 3 / len(rotation))  # an entry is uniform on [-1, 1]
    assert float(rotation.mean(0).abs().max()) < 4.5 * standard_error
    for entry in rotation.flatten(1).T:
        assert stats.kstest(entry.numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize("padding", [1, 2])
def test_images_without_noise_are_those_of_the_exact_sum(chain, padding):
    microscope = Microscope(padding=padding)
    view, _ = microscope.draw(20, seeded(2))
    index = torch.arange(20)
    points = view.rotation[:, :2] @ chain.coordinates + view.shift[..., None]
    canvas = (torch.arange(32 * padding).double() - (32 * padding - 1) / 2) * 4
    density = exact_density(points, view.sigma, canvas)
    got = microscope.images(chain.coordinates, index, view)
    inside = slice(16 * (padding - 1), 16 * (padding - 1) + 32)
    for n in range(20):
        exact = exact_image(density[n], float(view.defocus[n]), float(view.b_factor[n]))
        exact = exact[inside, inside]
        assert np.abs(got[n].numpy() - exact).max() < 4e-3 * exact.std()


def test_noise_has_the_variance_that_the_snr_says():
    microscope, snr = Microscope(), torch.tensor([0.5, 1.0, 4.0])
    images = torch.linspace(-1, 1, 32)[:, None] + torch.tensor([0.0, 5.0, -3.0]).view(3, 1, 1)
    images = images.expand(3, 32, 32)
    noise = torch.randn(3, 32, 32, generator=seeded())
    got = microscope.add_noise(images, snr, noise)
    distance = torch.arange(32) - 15.5
    disc = distance[:, None] ** 2 + distance**2 < 16**2
    for n in range(3):
        scale = images[n][disc].std() / snr[n].sqrt()
        torch.testing.assert_close(got[n], standardise(images[n] + scale * noise[n]))


def test_nuisance_parameters_have_their_laws():
    view, noise = Microscope().draw(5_000, seeded(3))
    drawn = torch.stack([view.sigma, view.defocus, view.b_factor, view.snr.log(), *view.shift.T])
    ends = ((3, 4), (1.8, 2.2), (1, 5), (math.log(0.5), 0), (-2, 2), (-2, 2))
    for values, (low, high) in zip(drawn, ends, strict=True):
        assert stats.kstest(values.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3
    assert stats.kstest(noise[:50].flatten().numpy(), "norm").pvalue > 1e-3
    correlation = torch.corrcoef(drawn) - torch.eye(6)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(5_000)


def test_datasets_do_not_depend_on_how_they_are_divided(cryo, monkeypatch):
    theta = torch.tensor([[0.0], [7.0], [19.0]])
    x = cryo.simulate(theta, 7, generator=seeded())
    generator = seeded()
    parts = [cryo.simulate(part, 7, generator=generator) for part in theta.split([1, 2])]
    torch.testing.assert_close(torch.cat(parts), x, atol=2e-5, rtol=0)
    monkeypatch.setattr("mindist_paper.tasks.cryo_em.IMAGES_AT_ONCE", 5)
    torch.testing.assert_close(cryo.simulate(theta, 7, generator=seeded()), x, atol=2e-5, rtol=0)


def test_rounded_draws_of_the_prior_are_uniform_on_the_conformations(cryo):
    torch.manual_seed(0)
    for theta in (cryo.prior.sample((20_000,)).round(), cryo.sample_prior(20_000, seeded())):
        counts = theta.abs().long().flatten().bincount(minlength=20)
        assert len(counts) == 20
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_theta_is_rounded_to_the_nearest_conformation(cryo):
    theta = torch.tensor([[3.4], [19.4], [-0.4], [19.5]])
    nearest = torch.tensor([[3.0], [19.0], [0.0], [19.0]])
    x = cryo.simulate(theta, 2, generator=seeded())
    assert torch.equal(x, cryo.simulate(nearest, 2, generator=seeded()))
    for value in (-1.0, 20.0):
        with pytest.raises(ValueError, match=r"theta: .*index from 0 to 19, got 1 of 2 outside"):
            cryo.simulate(torch.tensor([[3.0], [value]]), generator=seeded())


def test_the_summary_is_what_scipy_computes(cryo):
    x = cryo.simulate(torch.tensor([[2.0], [11.0]]), 9, generator=seeded()).double()
    pixels = x.flatten(2).numpy()
    parts = np.stack([part(pixels, axis=2) for part in (stats.skew, stats.kurtosis, np.ptp)], 2)
    expected = np.concatenate((parts.mean(1), parts.std(1, ddof=1)), 1)
    np.testing.assert_allclose(cryo.summary(x).numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(cryo.summary(x.float()).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(cryo.summary(x[:, :1])[:, 3:], torch.zeros(2, 3).double())
    constant = torch.tensor([[0.0, -3.0, 0.0]])
    assert torch.equal(image_statistics(torch.ones(1, 4, 4)), constant)


def test_contamination_is_standardised_noise(cryo):
    x = cryo.simulate(torch.full((4, 1), 5.0), 50, generator=seeded())
    dirty = cryo.contaminate(x, 0.4, generator=seeded(1))
    replaced = (dirty != x).flatten(2).any(2)
    noise = dirty[replaced]
    torch.testing.assert_close(noise.mean((1, 2)), torch.zeros(len(noise)), atol=1e-6, rtol=0)
    torch.testing.assert_close(noise.std((1, 2)), torch.ones(len(noise)))
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
    assert torch.equal(dirty[~replaced], x[~replaced])
    assert (cryo.summary(dirty)[:, 0] > cryo.summary(x)[:, 0]).all()  # noise is not skewed


def deviation(a: Tensor, b: Tensor) -> float:
    """Root mean squared deviation of centred `(3, A)` after superposition (Kabsch)."""
    left, s, right = torch.linalg.svd(a @ b.T)
    s[-1] *= torch.linalg.det(left @ right).sign()
    return float(((a.square().sum() + b.square().sum() - 2 * s.sum()) / a.shape[1]).sqrt())


def test_the_synthetic_chain_is_a_protein_sized_hinge(chain):
    x = chain.coordinates.double()
    assert x.shape == (20, 3, 1200)
    assert chain.coordinates.dtype == torch.float32
    assert float(x.mean(2).abs().max()) < 1e-4
    assert float((x.diff(dim=2).norm(dim=1) - 3.8).abs().max()) < 1e-4
    gyration = x.square().sum(1).mean(1).sqrt()
    assert 35 < float(gyration[0]) < float(gyration[-1]) < 45  # HSP90: 40 to 44
    assert x.norm(dim=1).max() < 72  # HSP90: 67; half the field of view: 64
    rise = np.array([deviation(x[c], x[0]) for c in range(1, 20)])  # opens linearly to 10 Angstrom
    assert rise[-1] == pytest.approx(10, abs=1)
    np.testing.assert_allclose(rise, rise[-1] * np.arange(1, 20) / 19, atol=0.2)
    assert float(torch.nn.functional.pdist(x[19].T).min()) > 1.5  # and avoids itself
    assert torch.equal(synthetic_chain.__wrapped__().coordinates, chain.coordinates)


def test_a_molecule_of_ones_own(tmp_path):
    path = tmp_path / "dimer.pt"
    torch.save(torch.tensor([[[-9.0, 9.0], [0, 0], [0, 0]]] * 3, dtype=torch.float64), path)
    dimer = Molecule.load(path)
    assert (dimer.name, dimer.num_conformations, dimer.num_atoms) == ("dimer", 3, 2)
    assert dimer.coordinates.dtype == torch.float32
    task = CryoEMTask(dimer, num_obs=4)
    assert "dimer, 2 atoms" in task.card
    assert task.simulate(torch.tensor([[2.0]]), generator=seeded()).shape == (1, 4, 32, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(20, 1207, 3), r"expected one tensor of shape \(C, 3, A\).*\(20, 1207, 3\)"),
        ({"x": torch.zeros(1)}, "expected one tensor of shape .* got dict"),
        (torch.full((1, 3, 2), math.nan), "expected .*finite coordinates"),
        (None, "path: expected a file that torch.save wrote"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, content, message):
    path = tmp_path / "molecule.pt"
    path.write_text("ATOM      1  CA") if content is None else torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        Molecule.load(path)
    with pytest.raises(ValueError, match=r"path: expected a file with coordinates, got '.*absent'"):
        Molecule.load(tmp_path / "absent")


def test_hsp90_is_known_by_its_hash_and_a_failed_download_is_explained(tmp_path, monkeypatch):
    path = tmp_path / "hsp90_models.pt"
    torch.save(torch.zeros(20, 3, 1207), path)
    monkeypatch.setenv(HSP90_VARIABLE, str(path))
    with pytest.raises(ValueError, match=r"SHA-256 218c48ca.*got .*hsp90_models.pt with SHA-256"):
        hsp90()
    monkeypatch.delenv(HSP90_VARIABLE)

    def retrieve(url: str, known_hash: str, **options: object) -> str:
        assert url == molecules.HSP90_URL
        assert known_hash == f"sha256:{molecules.HSP90_SHA256}"
        raise ConnectionError("no route to host")

    fake = types.SimpleNamespace(retrieve=retrieve, os_cache=lambda name: tmp_path / name)
    monkeypatch.setitem(sys.modules, "pooch", fake)
    with pytest.raises(OSError, match=r"Could not download HSP90 .*no route.*MINDIST_HSP90"):
        hsp90()


@pytest.mark.parametrize("options", [{"sigma": (4.0, 3.0)}, {"snr": (0.0, 1.0)}, {"padding": 0}])
def test_settings_are_checked(options):
    with pytest.raises(ValueError, match=rf"{next(iter(options))}: expected"):
        Microscope(**options)
