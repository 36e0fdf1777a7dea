"""Sessions: ranks that run one cell or function after another and keep their state.

    notebook (notebook.py)             supervisor.py                     rank.py
    ──────────────────────             ─────────────                     ───────
    open: channels and pipes ──fds──►  fork ───────────────────────────► join group, wait
                             ◄───────  open
    a turn: which ranks      ───────►  reset ── go ────────────────────►
            a packed call    ──────────────────────────────────────────► run it, deliver
                             ◄───────  outcome: all of them are done
    ...                                else: interrupt, cut ───────────► leave the collective,
                                             rejoin ───────────────────► a new process group
    close, or be killed      ── EOF ─► kill whatever is left

A launch is one such turn, after which the ranks end; the same code runs launches and turns.
"""

from dtlab.ranks.session.notebook import IN_RANKS as IN_RANKS
from dtlab.ranks.session.notebook import Session as Session
from dtlab.ranks.session.notebook import current as current
from dtlab.ranks.session.notebook import session as session
