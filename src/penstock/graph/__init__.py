"""Graphs: processors over streams, each message through each of them exactly once."""

from penstock.graph.message import Message, Stop
from penstock.graph.model import Graph

__all__ = ["Graph", "Message", "Stop"]
