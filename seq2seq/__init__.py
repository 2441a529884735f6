"""seq2seq: train translation models from recipes, translate text, evaluate with BLEU."""

import os

__version__ = "0.1.0"

# Threads that wait for each other by spinning lose milliseconds at every step when any other process runs: on 2 busy
# cores a training step took 10 times as long. OpenMP reads this once, before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
