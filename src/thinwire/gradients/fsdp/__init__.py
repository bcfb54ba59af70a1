"""Compression in FSDP2: its reduce-scatter, its all-gather, and the all-reduce between its replicas.

fsdp.compress(fully_sharded_model, "uniform:8", door, parameters="uniform:4")
"""

from thinwire.gradients.fsdp.attach import compress
from thinwire.gradients.fsdp.compression import Compression, compression_of

__all__ = ["Compression", "compress", "compression_of"]
