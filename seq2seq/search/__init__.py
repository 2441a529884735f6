"""Search with any model that has the step interface: beam search, sampling, ensembles, minimum Bayes risk."""
