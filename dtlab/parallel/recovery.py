"""Data parallelism that goes on when a replica dies, without a restart of the job.

Before every step the replicas that are alive agree on who they are, through a store that outlives
them. If the members have changed, they make a new process group. A replica is behind if it was
started again, or if its last all-reduce was cut off. Then one that is ahead sends it the state. So
a death costs the others one step at most, which they repeat without it:

    replica 0     step 7     step 8 ──╳ cut off     step 8 with 0, 2     step 9 with 0, 1, 2
    replica 1     step 7     killed              started again           receives the state
    replica 2     step 7     step 8 ──╳ cut off     step 8 with 0, 2     step 9 with 0, 1, 2

This is the idea of torchft (github.com/pytorch/torchft) in its simplest form: every replica is one
rank, and a TCPStore takes the place of the server that torchft calls lighthouse.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]
from torch.optim import Optimizer

__all__ = ["Replica"]

_POLL = 0.002  # seconds between two looks at the store

Backward = Callable[[int, int, int], object]


class Replica:
    """One of several replicas that train together, as long as one of them is alive.

        store = dist.TCPStore(host, port)            # of a server that no replica runs
        replica = Replica(store, number, 3, model, optimizer)
        replica.train(backward, until=100)

    `number` is this replica's number, below `replicas`. A process that replaces one that died
    takes its number. All replicas must begin with equal parameters.

    `patience` is how long a replica waits for another one, in seconds, before it goes on without
    it, so it must be longer than a step takes: a death costs this time. A replica that was only
    slow takes part again in the next step. `steps` counts the steps of the state, and `members`
    has for each of them the numbers of the replicas that took part in it.
    """

    def __init__(
        self,
        store: Store,
        number: int,
        replicas: int,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        patience: float = 5.0,
    ) -> None:
        if not 0 <= number < replicas:
            raise ValueError(f"Replica: number={number} must be from 0 to {replicas - 1}.")
        if patience <= 0:
            raise ValueError(f"Replica: patience={patience} must be above 0 seconds.")
        self.store, self.number, self.replicas = store, number, replicas
        self.module, self.optimizer, self.patience = module, optimizer, patience
        self.steps = 0
        self.members: list[list[int]] = []
        self._group: Any = None  # a ProcessGroupGloo
        self._made_in = -1  # the round in which the group was made; -1 without a group
        self._in_group: list[int] = []

    def train(self, backward: Backward, until: int) -> None:
        """Train with all replicas that are alive until the state has so many steps.

        `backward(step, place, count)` computes the gradients of this replica's part of the batch:
        the part at `place`, if `count` replicas take part. The parts must be equally large, since
        the step uses the mean of the replicas' gradients. It runs again for the same step, perhaps
        with another part, if a replica died in it.

        Raises what `backward` or the optimizer raises, and RuntimeError if the other replicas have
        finished before this one came.
        """
        while True:
            together = self._meet()
            if together is None:
                continue
            if self.steps >= until:
                self.store.set("finished", str(self.steps))
                self.close()
                return
            self.optimizer.zero_grad()
            backward(self.steps, together.index(self.number), len(together))
            if self._average(len(together)):
                self.optimizer.step()
                self.steps += 1
                self.members.append(together)

    def close(self) -> None:
        """Leave the group, so that replicas that wait for this one notice it at once."""
        if self._group is not None:
            with suppress(RuntimeError):
                self._group.abort()
        self._group, self._made_in = None, -1

    # ------------------------------------------------------------------ who takes part

    def _meet(self) -> list[int] | None:
        """Agree on the members of the next step, and bring all of them to the newest state.

        None if this replica must try again: it came too late, or another one died meanwhile.
        """
        if self.store.check(["finished"]):
            steps = int(self.store.get("finished"))
            raise RuntimeError(
                f"Replica {self.number}: the other replicas have finished, after {steps} steps, "
                "so none is left that could send its state. Load their last checkpoint."
            )
        number = int(self.store.compare_set("round", "", "0"))
        here = {"steps": self.steps, "group": self._made_in}
        self.store.set(f"{number}/here/{self.number}", json.dumps(here))
        members = self._agreed(number)
        self.store.compare_set("round", str(number), str(number + 1))
        if self.number not in members:
            return None
        about = [json.loads(self.store.get(f"{number}/here/{each}")) for each in members]
        groups = {each["group"] for each in about}  # where each was made; -1 without one
        try:
            if groups != {self._made_in} or -1 in groups or members != self._in_group:
                self._make_group(number, members)
            self._heal([each["steps"] for each in about])
        except RuntimeError:  # a member has died since
            self.close()
            return None
        return members

    def _agreed(self, number: int) -> list[int]:
        """The members of a round: the first proposal counts, whichever replica makes it."""
        chosen, deadline = f"{number}/members", time.monotonic() + self.patience
        expected = self._expected(number)
        while not self.store.check([chosen]):
            here = [r for r in range(self.replicas) if self.store.check([f"{number}/here/{r}"])]
            if {*expected} <= {*here} or time.monotonic() > deadline:
                self.store.compare_set(chosen, "", json.dumps(here))
            else:
                time.sleep(_POLL)
        return [int(each) for each in json.loads(self.store.get(chosen))]

    def _expected(self, number: int) -> Sequence[int]:
        """The replicas for which a round waits: all at first, then those of the round before."""
        if number == 0:
            return range(self.replicas)
        before: list[int] = json.loads(self.store.get(f"{number - 1}/members"))
        return before

    def _make_group(self, number: int, members: list[int]) -> None:
        self.close()
        place, patience = members.index(self.number), timedelta(seconds=self.patience)
        store = dist.PrefixStore(f"{number}/group", self.store)  # type: ignore[attr-defined]
        self._group = ProcessGroupGloo(store, place, len(members), patience)
        self._made_in, self._in_group = number, members

    # ------------------------------------------------------------------ what they exchange

    def _average(self, count: int) -> bool:
        """Average the gradients over the members; False if one of them died."""
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        try:
            self._group.allreduce([flat], dist.AllreduceOptions()).wait()
        except RuntimeError:
            self.close()
            return False
        parts = torch.split(flat / count, [grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
        return True

    def _heal(self, steps: list[int]) -> None:
        """Send the state of the first replica that is furthest to all, if some are behind."""
        newest = max(steps)
        if min(steps) == newest:
            return
        source = steps.index(newest)
        sends = self._in_group[source] == self.number
        payload = self._packed() if sends else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([payload.numel()])
        self._broadcast(size, source)
        if not sends:
            payload = torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(payload, source)
        if self.steps < newest:
            self._unpack(payload)

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = source
        self._group.broadcast([tensor], options).wait()

    def _packed(self) -> Tensor:
        """The whole state, as bytes in a tensor."""
        state: dict[str, Any] = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "members": self.members,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)

    def _unpack(self, payload: Tensor) -> None:
        state = torch.load(io.BytesIO(payload.numpy().tobytes()), weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.members = state["steps"], state["members"]
