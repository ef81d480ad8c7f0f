"""`python -m mindist_paper.zoo --out DIR`: run the zoo, the judges, or some models of both."""

import argparse
from dataclasses import asdict
from pathlib import Path

import torch

from mindist_paper.zoo.evaluate import Settings
from mindist_paper.zoo.judges import JUDGES
from mindist_paper.zoo.models import MODELS
from mindist_paper.zoo.run import run_zoo

parser = argparse.ArgumentParser(prog="python -m mindist_paper.zoo", description=__doc__)
parser.add_argument("--out", type=Path, required=True, help="folder of results")
parser.add_argument("--models", default="", help="names, separated by commas; else all of the zoo")
parser.add_argument("--judges", action="store_true", help="all models on which nothing was chosen")
for name, default in asdict(Settings()).items():  # --preset is "default" or "paper"
    parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
chosen = vars(parser.parse_args())
out, models, judges = (chosen.pop(name) for name in ("out", "models", "judges"))
names = models.split(",") if models else [*(JUDGES if judges else MODELS)]
torch.set_num_threads(1)
print("\n".join(run_zoo(out, Settings(**chosen), names)))
