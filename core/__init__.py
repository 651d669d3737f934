"""The engine: trees, verification, acceptance, cache, drafts."""
