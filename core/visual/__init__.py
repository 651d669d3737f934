"""What the target has seen: features, stored segments, compression."""
