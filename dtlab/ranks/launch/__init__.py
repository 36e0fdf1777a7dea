"""`dtlab.launch`: ranks from a warm server, begun, ended and cleaned up together."""
