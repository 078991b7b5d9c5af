"""In a rank of a replica: torchft as it is, but for where its servers listen.

A replica's manager and the server from which a peer takes its state listen on every network of the machine,
under the machine's name; torchft has no setting for it. On one machine both belong on loopback. Nothing else
is changed: the learner's program runs torchft's own Manager, its protocol and its transport of checkpoints.

It also says on every change of the group that there is no NCCL to record, and logs each checkpoint that is
fetched as a web server does; neither is output of the program.
"""

from __future__ import annotations

import functools
import logging
import warnings
from http.server import ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"


def hold_to_loopback() -> None:
    """Let this process's torchft listen on loopback alone. Raises ImportError where there is no torchft."""
    from torchft import manager
    from torchft.checkpointing import http_transport

    manager.ManagerServer = functools.partial(_listening_on_loopback, manager.ManagerServer)
    http_transport._IPv6HTTPServer = _CheckpointServer
    http_transport.HTTPTransport.address = _checkpoint_address
    logging.getLogger(manager.__name__).addFilter(_not_about_nccl)
    warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)


def _listening_on_loopback(server: Any, *, bind: str, **options: Any) -> Any:
    return server(**{**options, "bind": f"{LOOPBACK}:{bind.rpartition(':')[2]}", "hostname": LOOPBACK})


def _checkpoint_address(transport: Any) -> str:
    return f"http://{LOOPBACK}:{transport._server.server_address[1]}/checkpoint/"


class _CheckpointServer(ThreadingHTTPServer):
    request_queue_size = 1024  # as torchft's own

    def __init__(self, address: tuple[str, int], handler: Any):
        quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
        super().__init__((LOOPBACK, address[1]), quiet)


def _not_about_nccl(record: logging.LogRecord) -> bool:
    return "Unable to reset NCCL flight recorder" not in record.getMessage()
