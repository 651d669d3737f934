"""Drafters: cheap guesses that the target verifies."""
