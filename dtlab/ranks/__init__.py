"""Real rank processes for a notebook: launched in a tenth of a second, watched, and cleaned up.

Read in this order: `launch` (the call), `server` (the warm process), `supervisor` (one per
launch), `process` (what a rank does), `client` (the notebook's side), `transport` (what travels).
Ranks that stay from cell to cell are in `session/`.
"""
