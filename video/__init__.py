"""Frames in; drafts and frozen KV out."""
