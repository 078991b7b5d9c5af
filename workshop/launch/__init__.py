"""Run a program on ranks, from a notebook or from Python.

Fresh ranks for a whole program (`torchrun`), several such launches that outlive one another (`replicas`), or
ranks that stay and keep their variables (`Ranks`).
Nothing here imports torch: the ranks live in processes of their own (`workshop.launch.child`).
"""

from workshop.launch.failures import Failure, RankFailed, RankInterrupted, RankTimeout
from workshop.launch.fresh.nodes import Nodes
from workshop.launch.fresh.replicas import ReplicasResult, replicas
from workshop.launch.fresh.torchrun import Result, torchrun
from workshop.launch.nodes.ranks import StayingNodes
from workshop.launch.report import Reported, report
from workshop.launch.request import Cell, Limits, Module, Script, unpickled
from workshop.launch.session import EngineError, Session
from workshop.launch.staying.cell import RanksResult
from workshop.launch.staying.ranks import Ranks

__all__ = [
    "Cell",
    "EngineError",
    "Failure",
    "Limits",
    "Module",
    "Nodes",
    "RankFailed",
    "RankInterrupted",
    "RankTimeout",
    "Ranks",
    "RanksResult",
    "ReplicasResult",
    "Reported",
    "Result",
    "Script",
    "Session",
    "StayingNodes",
    "replicas",
    "report",
    "torchrun",
    "unpickled",
]
