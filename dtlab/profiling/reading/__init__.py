"""What a trace's file says: formats, entries that can be read, and names of kernels."""
