"""The compiled cosines and sines: accuracy, threads, memory, and the way without numba."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from mindist import compiled, threads
from mindist.features import FourierFeatures, fast, plain, spans

pytest.importorskip("numba")
from mindist.features import waves

DTYPES = [torch.float32, torch.float64]
# Of a wave, after the rounding of its angle: 1.3e-7 and 3.7e-16 were seen.
ERROR = {torch.float32: 1.7e-7, torch.float64: 4e-16}
TWO_PI = 2 * np.arccos(np.longdouble(-1))
# Few dimensions, in which the kernel makes the phases, and many, in which a product does.
DIMENSIONS = [1, 3, fast.FUSED_DIMENSIONS, fast.FUSED_DIMENSIONS + 1, 40]


def normal(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator)


def draw(event_shape, num_features=96, bandwidth=1.5):
    generator = torch.Generator().manual_seed(1)
    return FourierFeatures.draw(event_shape, num_features, bandwidth=bandwidth, generator=generator)


def wave(turns):
    """Cosines and sines of angles in turns `(n,)`, by the compiled polynomial."""
    out = np.empty((1, 2 * len(turns)), turns.dtype)
    waves.waves_of_phases(turns[None], turns.dtype.type(1), out, (0, 1))
    return out[0].reshape(2, -1)


@pytest.fixture
def two_threads():
    """Two threads for any amount of work."""
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(number)


# ---------------------------------------------------------------------------- accuracy


@pytest.mark.parametrize(("terms", "most"), [(waves.SINE_32, 2e-8), (waves.SINE_64, 2e-16)])
def test_the_polynomial_is_a_sine(terms, most):
    """In exact arithmetic; the rounding of the float32 terms is what leaves 2e-8, not 3e-9."""
    y = np.linspace(0, 0.25, 10_001, dtype=np.longdouble)
    value = y * sum(np.longdouble(c) * y ** (2 * i) for i, c in enumerate(terms))
    assert np.abs(value - np.sin(TWO_PI * y)).max() < most


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("largest", [0.5, 3.0, 1e4])
def test_waves_are_right_to_the_last_digits(dtype, largest):
    turns = (largest * (2 * torch.rand(100_000, dtype=dtype) - 1)).numpy()
    angle = TWO_PI * (turns - np.rint(turns)).astype(np.longdouble)  # less a whole number of turns
    error = np.abs(wave(turns) - np.stack([np.cos(angle), np.sin(angle)]))
    assert error.max() < ERROR[dtype]
    assert np.sqrt((error**2).mean()) < ERROR[dtype] / 4


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_quarters_of_a_turn_are_exact(kind):
    turns = np.array([0, 0.25, 0.5, 0.75, 1, -0.25, 1e30], kind)
    expected = [[1, 0, -1, 0, 1, 0, 1], [0, 1, 0, -1, 0, -1, 0]]
    assert wave(turns).tolist() == expected


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_not_finite_has_no_wave(kind):
    turns = np.array([np.nan, np.inf, -np.inf, 0.0] * 8, kind)  # in every lane of a vector
    assert np.isnan(wave(turns)).reshape(2, 8, 4).all((0, 1)).tolist() == [True, True, True, False]


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_nan_stays_in_its_dataset(dim):
    x = normal(4, 50, dim)
    x[1, 7, 0] = math.nan
    finite = draw((dim,)).mean(x).isfinite()
    assert finite.tolist() == [[True] * 96, [False] * 96, [True] * 96, [True] * 96]


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_features_are_those_of_torch_in_float64(dim, dtype, scale):
    """Up to the rounding of the phase: eps times its size, and that of the sum of its terms."""
    x, z = scale * normal(3, 70, dim), draw((dim,), bandwidth=1.5 * math.sqrt(dim))
    x = x.to(dtype)
    phase = x.double() @ z.weight
    exact = torch.cat([phase.cos(), phase.sin()], 2) * math.sqrt(2 / 96)
    size = float((x.double().abs() @ z.weight.abs()).max())
    error = 4 * ERROR[dtype] + 2 * torch.finfo(dtype).eps * size
    assert z(x).dtype == z.mean(x).dtype == dtype
    assert float((z(x) - exact).abs().max()) < error * math.sqrt(2 / 96)
    assert float((z.mean(x) - exact.mean(1)).abs().max()) < error * math.sqrt(2 / 96)


@pytest.mark.parametrize("dim", [2, 40])
def test_a_long_dataset_loses_no_digits(dim):
    """Of 100,000 float32 waves near 1, summed one after the other, 3 digits would be lost."""
    x = 0.01 * normal(1, 100_000, dim, dtype=torch.float32)
    z = draw((dim,))
    error = (z.mean(x) - z.mean(x.double())).abs().max()
    assert float(error) < 1e-7 * math.sqrt(2 / 96)


# ---------------------------------------------------------------------------- shapes and layouts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_obs", [1, 31, 32, 33, 500])
@pytest.mark.parametrize("event_shape", [(), (1,), (3,), (5, 4)], ids=str)
def test_it_is_what_torch_computes(monkeypatch, event_shape, num_obs, dtype):
    x, z = normal(5, num_obs, *event_shape, dtype=dtype), draw(event_shape)
    fast_features, fast_mean = z(x), z.mean(x)
    monkeypatch.setattr(fast, "kernels", lambda: None)
    tolerance = 2e-6 if dtype == torch.float32 else 4e-15
    torch.testing.assert_close(fast_features, z(x), rtol=0, atol=tolerance)
    torch.testing.assert_close(fast_mean, z.mean(x), rtol=0, atol=tolerance)
    assert fast_features.shape == (5, num_obs, 96)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_no_data_and_no_batch(dim):
    z = draw((dim,))
    assert z.mean(torch.empty(0, 5, dim)).shape == (0, 96)
    assert z(torch.empty(0, 5, dim)).shape == (0, 5, 96)
    assert z(torch.empty(dim)).shape == (96,)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_data_may_lie_in_any_order(monkeypatch, dim):
    x, z = normal(dim, 6, 50), draw((dim,))
    moved = x.permute(1, 2, 0)
    monkeypatch.setattr("mindist.features.fourier.COPY_BYTES", 2 * moved[:1].nbytes)
    assert torch.equal(z.mean(moved), z.mean(moved.contiguous()))
    assert torch.equal(z(moved), z(moved.contiguous()))
    assert torch.equal(z.mean(moved[:1].expand(3, -1, -1)), z.mean(moved[[0, 0, 0]]))
    minus = torch.complex(x, x).conj().imag.permute(1, 2, 0)  # torch keeps its sign as a bit
    assert torch.equal(z.mean(minus), z.mean(-moved))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's jacfwd
def test_half_precision_and_gradients_are_torch_s():
    z, x = draw((2,)), normal(4, 2)
    assert z.mean(normal(3, 20, 2).half()).dtype == torch.float16
    assert torch.autograd.gradcheck(z, (x.requires_grad_(),))
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(z)(x), z(x))
    forwards, backwards = torch.func.jacfwd(z)(x[0].detach()), torch.func.jacrev(z)(x[0].detach())
    torch.testing.assert_close(forwards, backwards)


# ---------------------------------------------------------------------------- threads and memory


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("num_datasets", [1, 2, 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_threads_changes_no_bit(monkeypatch, two_threads, dim, num_datasets, dtype):
    x, z = normal(num_datasets, 333, dim, dtype=dtype), draw((dim,))
    monkeypatch.setattr(spans, "BLOCK_BYTES", 2**14)  # parts of one dataset
    monkeypatch.setattr(torch, "mm", one_after_the_other)
    alone = z(x), z.mean(x)
    monkeypatch.setattr(fast, "WORTH_SHARING", 0)
    for number in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=number: number)
        assert torch.equal(z(x), alone[0])
        assert torch.equal(z.mean(x), alone[1])


def one_after_the_other(x, weight, out):
    """A product whose rows do not depend on how many there are, as those of libraries may."""
    return torch.stack([row @ weight for row in x], out=out)


@pytest.mark.parametrize("dim", [1, 3, fast.FUSED_DIMENSIONS])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dataset_does_not_depend_on_the_others(dim, dtype):
    x, z = normal(7, 100, dim, dtype=dtype), draw((dim,))
    assert torch.equal(torch.cat([z.mean(row[None]) for row in x]), z.mean(x))
    assert torch.equal(torch.stack([z(row) for row in x]), z(x))


def test_callers_may_be_threads(monkeypatch, two_threads):
    monkeypatch.setattr(fast, "WORTH_SHARING", 0)
    sets, z = [normal(20, 100, 2, seed=i) for i in range(16)], draw((2,))
    expected = [z.mean(x) for x in sets]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(z.mean, sets), expected))


FORK = """
import os, torch
from mindist.features import FourierFeatures, fast
fast.WORTH_SHARING = 0
torch.set_num_threads(2)
z = FourierFeatures.draw((2,), 64, bandwidth=1.0, generator=torch.Generator().manual_seed(0))
x = torch.randn(50, 100, 2)
expected = z.mean(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(z.mean(x), expected) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="needs fork")
def test_a_forked_process_computes_too():
    run = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == "0"


MEMORY = """
import resource, sys, torch
from mindist.features import FourierFeatures
dim, num_datasets = map(int, sys.argv[1:])
z = FourierFeatures.draw((dim,), 512, bandwidth=1.0, generator=torch.Generator())
x = torch.zeros(num_datasets, 100, dim)
z.mean(x[:1000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output = z.mean(x)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 if sys.platform == "darwin" else 1024
print((after - before) * unit - output.nbytes)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
@pytest.mark.parametrize(("dim", "num_datasets"), [(2, 50_000), (20, 20_000)])
def test_memory_does_not_grow_with_the_number_of_datasets(dim, num_datasets):
    """All phases at once would take 5 and 2 GB."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(dim), str(num_datasets)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(run.stdout) < 2**25


def test_work_is_cut_into_ranges():
    for total, parts, multiple in ((0, 3, 1), (7, 3, 1), (7, 9, 1), (256, 3, 16), (10, 4, 16)):
        cut = threads.ranges(total, parts, multiple=multiple)
        assert [i for first, last in cut for i in range(first, last)] == list(range(total))
        assert len(cut) <= parts
        assert all(first % multiple == 0 for first, _ in cut)


def test_an_error_in_a_thread_is_raised(two_threads):
    with threads.team(worth=True) as team, pytest.raises(ZeroDivisionError):
        team.do(lambda share: 1 / share, [1, 0])
    assert team.size == 2


# ---------------------------------------------------------------------------- without numba


def test_without_numba_torch_computes():
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from mindist.features import FourierFeatures, fast\n"
        "z = FourierFeatures.draw((2,), 4, bandwidth=1.0, generator=torch.Generator())\n"
        "print(z.mean(torch.zeros(1, 3, 2)).tolist(), fast.kernels())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    root = math.sqrt(0.5)
    assert run.stdout.strip().endswith("None")
    assert eval(run.stdout.strip().removesuffix("None"))[0] == pytest.approx([root, root, 0, 0])


def test_without_a_place_for_machine_code_it_is_compiled_each_time(monkeypatch):
    real = compiled.numba.njit

    def njit(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(compiled.numba, "njit", njit)
    assert compiled.jit(lambda: 3)() == 3


def test_torch_s_own_way_is_the_mean_of_its_waves(monkeypatch):
    monkeypatch.setattr(spans, "BLOCK_BYTES", 2**12)
    x, weight = normal(5, 70, 3), normal(3, 20)
    torch.testing.assert_close(
        plain.mean_waves(x, weight, 2.0), plain.waves(x, weight, 2.0).mean(1)
    )
