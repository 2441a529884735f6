"""Training: the loop, gradients, optimizers, validation, divergence, synthetic text, distributed training."""
