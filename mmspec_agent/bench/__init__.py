"""Benchmarks: both arms in one process, in turn, as ratios."""
