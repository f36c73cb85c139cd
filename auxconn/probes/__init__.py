"""Probes: what runs beside vLLM's scheduler and worker to see what their connector does.

`scheduler` and `worker` are the two probes; the others are their parts. Three rules hold in
all of them: they never block, never raise into the engine and never change what it decides.
"""
