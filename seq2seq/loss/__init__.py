"""Losses: hidden states and targets to a scalar and its gradients."""
