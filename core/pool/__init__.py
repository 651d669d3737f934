"""Trained drafts: the target's own text as training data, and what is learned from it."""
