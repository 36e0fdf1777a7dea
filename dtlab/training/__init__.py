"""Data, models, accumulation, learning rates, precision and activation memory for training.

Nothing here knows how a model is spread over ranks. It works with any module, wrapped or not.
"""
