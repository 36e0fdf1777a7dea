"""Answers to 11/sharded: mistakes people make, and right answers written differently."""

from itertools import pairwise


def by_bytes(parameters, servers):
    """The names on each server: the largest first, each to the server with the fewest bytes."""
    loads, names = [0] * servers, [[] for _ in range(servers)]
    for name in sorted(parameters, key=lambda name: -parameters[name].nbytes):
        least = loads.index(min(loads))
        names[least].append(name)
        loads[least] += parameters[name].nbytes
    return names


class Right:
    """What others change a method of."""

    def __init__(self, parameters, servers, make):
        self.names = self.divide(parameters, servers)
        shards = [{name: parameters[name] for name in names} for names in self.names]
        self.servers = [make(shard) for shard in shards]

    def divide(self, parameters, servers):
        return by_bytes(parameters, servers)

    def pull(self, worker, step, get):
        references = [server.pull.remote(worker, step) for server in self.servers]
        return {name: tensor for part in get(references) for name, tensor in part.items()}

    def push(self, worker, step, gradients, get):
        references = []
        for server, names in zip(self.servers, self.names, strict=True):
            part = {name: gradients[name] for name in names}
            references.append(server.push.remote(worker, step, part))
        get(references)

    def start(self, workers, data, put):
        shared = put(data)
        return [worker.train.remote(number, shared) for number, worker in enumerate(workers)]


# Wrong: shards ----------------------------------------------------------------------------------


class Untouched(Right):
    def __init__(self, parameters, servers, make):
        raise NotImplementedError()


class InTurn(Right):
    """The first parameter to server 0, the second to server 1, and so on."""

    def divide(self, parameters, servers):
        return [list(parameters)[number::servers] for number in range(servers)]


class HalfOfTheNames(Right):
    def divide(self, parameters, servers):
        names = list(parameters)
        cuts = [len(names) * number // servers for number in range(servers + 1)]
        return [names[a:b] for a, b in pairwise(cuts)]


class ByElements(Right):
    """Counts numbers, although some have two bytes and others four."""

    def divide(self, parameters, servers):
        loads, names = [0] * servers, [[] for _ in range(servers)]
        for name in sorted(parameters, key=lambda name: -parameters[name].numel()):
            least = loads.index(min(loads))
            names[least].append(name)
            loads[least] += parameters[name].numel()
        return names


class CutInTheirOrder(Right):
    """Fills one server up to its share, then the next."""

    def divide(self, parameters, servers):
        share = sum(tensor.nbytes for tensor in parameters.values()) / servers
        names, filled = [[] for _ in range(servers)], 0
        for name, tensor in parameters.items():
            names[min(int(filled / share), servers - 1)].append(name)
            filled += tensor.nbytes
        return names


class LargestInTurn(Right):
    def divide(self, parameters, servers):
        names = sorted(parameters, key=lambda name: -parameters[name].nbytes)
        return [names[number::servers] for number in range(servers)]


class AllOnEach(Right):
    def divide(self, parameters, servers):
        return [list(parameters)] * servers


class OneServer(Right):
    def divide(self, parameters, servers):
        return [list(parameters)]


# Wrong: pull ------------------------------------------------------------------------------------


class LastShardOnly(Right):
    def pull(self, worker, step, get):
        for part in get([server.pull.remote(worker, step) for server in self.servers]):
            parameters = part
        return parameters


class NextStep(Right):
    def pull(self, worker, step, get):
        return super().pull(worker, step + 1, get)


class PullsOncePerName(Right):
    def pull(self, worker, step, get):
        references = {
            name: server.pull.remote(worker, step)
            for server, names in zip(self.servers, self.names, strict=True)
            for name in names
        }
        return {name: get(one)[name] for name, one in references.items()}


class References(Right):
    """Forgets get."""

    def pull(self, worker, step, get):
        references = [server.pull.remote(worker, step) for server in self.servers]
        return {
            name: one for one, names in zip(references, self.names, strict=True) for name in names
        }


# Wrong: push ------------------------------------------------------------------------------------


class DoesNotWait(Right):
    def push(self, worker, step, gradients, get):
        super().push(worker, step, gradients, lambda references: None)


class WaitsForTheLast(Right):
    def push(self, worker, step, gradients, get):
        super().push(worker, step, gradients, lambda references: get(references[-1]))


class Swapped(Right):
    """Each server gets the gradients of another one."""

    def push(self, worker, step, gradients, get):
        self.names.reverse()
        super().push(worker, step, gradients, get)
        self.names.reverse()


class ShardInsteadOfWorker(Right):
    def push(self, worker, step, gradients, get):
        references = [
            server.push.remote(number, step, {name: gradients[name] for name in names})
            for number, (server, names) in enumerate(zip(self.servers, self.names, strict=True))
        ]
        get(references)


class FirstServerOnly(Right):
    def push(self, worker, step, gradients, get):
        part = {name: gradients[name] for name in self.names[0]}
        get(self.servers[0].push.remote(worker, step, part))


# Wrong: together --------------------------------------------------------------------------------


class PullsInTurn(Right):
    def pull(self, worker, step, get):
        parameters = {}
        for server in self.servers:
            parameters |= get(server.pull.remote(worker, step))
        return parameters


class PushesInTurn(Right):
    def push(self, worker, step, gradients, get):
        for server, names in zip(self.servers, self.names, strict=True):
            get(server.push.remote(worker, step, {name: gradients[name] for name in names}))


# Wrong: bytes -----------------------------------------------------------------------------------


class AllGradientsToEach(Right):
    def push(self, worker, step, gradients, get):
        get([server.push.remote(worker, step, gradients) for server in self.servers])


class InDoublePrecision(Right):
    def push(self, worker, step, gradients, get):
        doubled = {name: gradient.double() for name, gradient in gradients.items()}
        super().push(worker, step, doubled, get)


# Wrong: once ------------------------------------------------------------------------------------


class ByValue(Right):
    def start(self, workers, data, put):
        return [worker.train.remote(number, data) for number, worker in enumerate(workers)]


class PutForEach(Right):
    def start(self, workers, data, put):
        return [worker.train.remote(number, put(data)) for number, worker in enumerate(workers)]


class InsideAList(Right):
    """Ray does not look for references inside a list."""

    def start(self, workers, data, put):
        shared = [put(data)]
        return [worker.train.remote(number, shared) for number, worker in enumerate(workers)]


class ReturnsNothing(Right):
    def start(self, workers, data, put):
        super().start(workers, data, put)


class OnlyOneWorker(Right):
    def start(self, workers, data, put):
        return super().start(workers[:1], data, put)


class OneNumberForAll(Right):
    def start(self, workers, data, put):
        shared = put(data)
        return [worker.train.remote(0, shared) for worker in workers]


# Right ------------------------------------------------------------------------------------------


class WithPlaces:
    """Keeps the server of each name, and gets one reference after another."""

    def __init__(self, parameters, servers, make):
        self.place, loads = {}, dict.fromkeys(range(servers), 0)
        items = sorted(parameters.items(), key=lambda item: item[1].nbytes, reverse=True)
        for name, tensor in items:
            self.place[name] = min(loads, key=loads.get)
            loads[self.place[name]] += tensor.element_size() * tensor.numel()
        self.handles = [make(self.of(number, parameters)) for number in range(servers)]

    def of(self, number, tensors):
        return {name: tensor for name, tensor in tensors.items() if self.place[name] == number}

    def pull(self, worker, step, get):
        parameters, calls = {}, [h.pull.remote(step=step, worker=worker) for h in self.handles]
        for call in calls:
            parameters.update(get(call))
        return parameters

    def push(self, worker, step, gradients, get):
        calls = [
            handle.push.remote(worker, step, gradients=self.of(number, gradients))
            for number, handle in enumerate(self.handles)
        ]
        for call in reversed(calls):
            get(call)

    def start(self, workers, data, put):
        reference, calls = put(data), []
        for number in range(len(workers)):
            calls.append(workers[number].train.remote(number, data=reference))
        return calls


class BestOfAll(Right):
    """Tries every way to divide the parameters."""

    def divide(self, parameters, servers):
        names, best = list(parameters), None
        for code in range(servers ** len(names)):
            places = [code // servers**n % servers for n in range(len(names))]
            loads = [0] * servers
            for name, place in zip(names, places, strict=True):
                loads[place] += parameters[name].nbytes
            if best is None or max(loads) < best[0]:
                best = max(loads), places
        return [
            [n for n, place in zip(names, best[1], strict=True) if place == s]
            for s in range(servers)
        ]


RIGHT = [Right, WithPlaces, BestOfAll]

WRONG = {
    Untouched: {"shards": "is not written yet"},
    InTurn: {"shards": "which server has the least so far?"},
    HalfOfTheNames: {"shards": "the servers keep"},
    ByElements: {"shards": "in bytes"},
    CutInTheirOrder: {"shards": "the servers keep"},
    LargestInTurn: {"shards": "the servers keep"},
    AllOnEach: {"shards": "is on 2 servers"},
    OneServer: {"shards": "once for each server"},
    LastShardOnly: {"pull": "All parameters in one dict"},
    NextStep: {"pull": "another worker or step"},
    PullsOncePerName: {"pull": "Call each server once"},
    References: {"pull": "Get what the calls return"},
    DoesNotWait: {"push": "before server 0 has answered"},
    WaitsForTheLast: {"push": "before server 0 has answered"},
    Swapped: {"push": "does not get the gradient"},
    ShardInsteadOfWorker: {"push": "another worker or step"},
    FirstServerOnly: {"push": "leaves out server 1"},
    PullsInTurn: {"together": "pull waits for one server before"},
    PushesInTurn: {"together": "push waits for one server before"},
    AllGradientsToEach: {"bytes": "the gradients of its own parameters"},
    InDoublePrecision: {"bytes": "all gradients together have"},
    ByValue: {"once": "Put it once"},
    PutForEach: {"once": "Put it once"},
    InsideAList: {"once": "not inside a list or dict"},
    ReturnsNothing: {"once": "return the references"},
    OnlyOneWorker: {"once": "on every worker"},
    OneNumberForAll: {"once": "a wrong number"},
}

ORDER = "nothing depends on this order"
TWICE = "the second time changes nothing"
EQUIVALENT = {
    "loads, self.names = ([0] * servers, [[] for _ in range(servers)]) -> loads, "
    "self.names = ([1] * servers, [[] for _ in range(servers)])": (
        "only differences of loads count"
    ),
    "loads, self.names = ([0] * servers, [[] for _ in range(servers)]) -> loads, "
    "self.names = ([-1] * servers, [[] for _ in range(servers)])": (
        "only differences of loads count"
    ),
    "... ([0] * servers, [[] for _ in range(servers)]) -> ... ([0] * servers, [[] for _ "
    "in reversed(range(servers))])": ORDER,
    "loads[least] += parameters[name].nbytes; self.names[least].append(name) -> "
    "self.names[least].append(name); loads[least] += parameters[name].nbytes": ORDER,
    "loads[least] += parameters[name].nbytes -> loads[least] = loads[least] + "
    "parameters[name].nbytes": "the same values",
    "self.names[least].append(name) -> self.names[least - 1].append(name)": (
        "the servers have other numbers"
    ),
    "loads[least] += parameters[name].nbytes -> loads[least] += parameters[name].nbytes; "
    "loads[least] += parameters[name].nbytes": "all loads are doubled",
    "self.names[least].append(name) -> self.names[least].append(name); "
    "self.names[least].append(name)": "a name occurs once in a dict",
    "... parameters[name] for name in names}) for names in self.names] -> ... "
    "parameters[name] for name in reversed(names)}) for names in self.names]": ORDER,
    "for shard in get([server.pull.remote(worker, step) for server in self.servers]): -> "
    "for shard in reversed(get([server.pull.remote(worker, step) for server in "
    "self.servers])):": ORDER,
    "... get([server.pull.remote(worker, step) for server in self.servers]): -> ... "
    "get([server.pull.remote(worker, step) for server in reversed(self.servers)]):": ORDER,
    "parameters |= shard -> parameters |= shard; parameters |= shard": TWICE,
    "parameters |= shard -> parameters = parameters | shard": "the same values",
    "shard = {name: gradients[name] for name in names} -> shard = {name: gradients[name] "
    "for name in reversed(names)}": ORDER,
    "get(references) -> get(references); get(references)": TWICE,
}
