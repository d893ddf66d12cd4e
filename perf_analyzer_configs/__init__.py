"""Ready runs for perf_analyzer; README.md says more."""
