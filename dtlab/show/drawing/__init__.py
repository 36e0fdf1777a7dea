"""What figures are drawn with: colours, charts, axes, lanes and labels."""
