"""Parameter servers: some ranks keep the parameters, the other ranks compute gradients.

server.py    `ParameterServer`: the ranks that keep parameters and step them
worker.py    `ParameterWorker`: the ranks that pull parameters and push gradients
shards.py    which server keeps which parameters, and the format of the messages
"""

from dtlab.parallel.server.server import ParameterServer as ParameterServer
from dtlab.parallel.server.server import ServerReport as ServerReport
from dtlab.parallel.server.worker import ParameterWorker as ParameterWorker

__all__ = ["ParameterServer", "ParameterWorker", "ServerReport"]
