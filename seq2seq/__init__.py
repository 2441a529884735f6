"""seq2seq: train translation models from recipes, translate text, evaluate with BLEU."""

import os
import sys

__version__ = "0.1.0"

# OpenMP's threads wait for each other at every operation. If they spin for long, any other busy process stalls them
# (a training step on 2 cores took 6 times as long); if they sleep at once, waking up costs a quarter of the speed. So
# GNU's runtime spins for some microseconds and then sleeps. It reads this once, before torch is imported.
if sys.platform == "linux":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
