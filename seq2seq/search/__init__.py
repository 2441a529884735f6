"""From logits to hypotheses, over the step interface: beam search, top-k, sampling, ensembles, MBR."""
