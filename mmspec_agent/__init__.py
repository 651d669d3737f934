"""Local language and vision-language models that answer sooner, with the same tokens."""
