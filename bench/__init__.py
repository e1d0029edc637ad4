"""bench: the benchmarks as a kit, run by `python -m bench NAME`."""
