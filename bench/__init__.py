"""Benchmarks, and what they share with the tests of the page."""
