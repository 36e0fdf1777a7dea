"""Compares the operations of all ranks; detects and explains deadlocks."""
