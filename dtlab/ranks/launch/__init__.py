"""`dtlab.launch`: starts ranks from a warm server, and ends and cleans them up together."""
