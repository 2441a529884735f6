"""Models and attention that few people train, one file each. `seq2seq.model` builds them from a recipe."""
