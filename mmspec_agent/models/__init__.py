"""Models that work offline, and how any other is found."""
