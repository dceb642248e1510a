"""The parts of benchmarks/high_resolution.py: training on megapixel digits."""
