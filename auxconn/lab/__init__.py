"""The what-if lab: vLLM's real scheduler, worker connector and store, with no model."""
