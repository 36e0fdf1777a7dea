"""Rank processes for a notebook: launching, recording, watching, emulation and sandboxing.

launch/     `dtlab.launch`: launcher (the call), client (the notebook's side), server (the warm
            process), supervisor (one for each launch), process (what a rank does)
record/     hooks in torch.distributed, and the bytes that the operating system counted
watch/      operations of all ranks compared; deadlocks found and explained
emulate/    the emulated interconnect
sandbox/    isolation of code that is graded
session/    ranks that stay from cell to cell

What all of these use lies beside them: protocol (messages), transport (how they travel), plain
(values without code), system (calls to the operating system).
"""
