"""A real vLLM on a machine without a GPU: toy model, host KV tier, supervisor, load."""
