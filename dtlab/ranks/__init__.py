"""Rank processes for a notebook: launching, recording, watching, emulation and sandboxing.

launch/     `dtlab.launch`: launcher (the call), client (the notebook's side), server (the warm
            server), supervisor (one for each launch), process (the rank process)
record/     hooks in torch.distributed, and byte counters of the operating system
watch/      compares the operations of all ranks; finds and explains deadlocks
emulate/    the emulated interconnect
sandbox/    isolation of graded code
session/    ranks that keep their state from cell to cell
ray/        a Ray cluster on this machine, and launches on a node of a cluster

Modules that all of these use: protocol (messages), transport (sockets and pickles), plain
(values without code), system (calls to the operating system).
"""
