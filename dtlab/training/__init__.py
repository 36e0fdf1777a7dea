"""What surrounds a training step: data, models, accumulation, learning rates, exact means.

Nothing here knows how a model is spread over ranks. It works with any module, wrapped or not.
"""
