"""Train a model on a prepared dataset: `python scripts/train_tpu.py --help`. Installed, it is called `train-tpu`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipelines.train.cli import main

if __name__ == "__main__":
    sys.exit(main())
