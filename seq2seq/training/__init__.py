"""Training: the loop, gradients, optimizers, learning rate, validation, divergence, synthetic text, many processes."""
