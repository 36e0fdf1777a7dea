"""Data, models, accumulation, learning rates, precision and activation memory for training.

These modules do not depend on the form of parallelism. They work with any module, wrapped or not.
"""
