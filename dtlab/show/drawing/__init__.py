"""Building blocks of the figures: colours, charts, axes, lanes and labels."""
