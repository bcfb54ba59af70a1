"""Graphs: load, check, partition, shard. Knows no training."""

from thinwire.graphs.folder import Manifest, check_out, is_shard_folder, read_manifest, read_shard, write_shards
from thinwire.graphs.graph import SPLITS, TEST, TRAIN, UNUSED, VALIDATION, Graph, GraphError, check
from thinwire.graphs.loading import load
from thinwire.graphs.partition import Settings, assign, read_assignment
from thinwire.graphs.preparing import prepare
from thinwire.graphs.pyg import from_data
from thinwire.graphs.shard import Shard, glue, split

__all__ = [
    "SPLITS",
    "TEST",
    "TRAIN",
    "UNUSED",
    "VALIDATION",
    "Graph",
    "GraphError",
    "Manifest",
    "Settings",
    "Shard",
    "assign",
    "check",
    "check_out",
    "from_data",
    "glue",
    "is_shard_folder",
    "load",
    "prepare",
    "read_assignment",
    "read_manifest",
    "read_shard",
    "split",
    "write_shards",
]
