"""METIS with several balance constraints: the library inside pymetis's wheel, called through its C interface.

pymetis's own interface passes one constraint. Its extension module contains all of METIS, and exports it; option
numbers and the width of integers are asked of pymetis, so that nothing here is tied to one version (decision 7).
"""

import ctypes
import warnings
from types import ModuleType
from typing import Any

import numpy as np

from thinwire.graphs.graph import Array

# At most 1.001 times the mean, in thousandths above it.
TOLERANCE = 1
OBJECTIVES = {"cut": 0, "volume": 1}
OK = 1
NUM_OPTIONS = 40


class MetisError(ValueError):
    """METIS is not installed, or could not partition this graph."""


def partition(indptr: Array, indices: Array, weights: Array, parts: int, *, objective: str, seed: int) -> Array:
    """A part for each vertex. The graph is symmetric and has no loops; weights[v, c] is balanced for each c."""
    num_vertices = len(indptr) - 1
    if parts == 1:
        return np.zeros(num_vertices, dtype=np.int32)
    if num_vertices <= parts:
        return np.arange(num_vertices, dtype=np.int32)
    # A kind that no vertex has any of can't be balanced: METIS would divide by its sum, 0.
    weights = weights[:, weights.sum(axis=0) > 0]
    try:
        import pymetis._internal as internal
    except ImportError as error:
        raise MetisError("partitioning by METIS needs pymetis: pip install pymetis, or give --method random") from error
    library = ctypes.CDLL(internal.__file__)
    if not hasattr(library, "METIS_PartGraphKway"):
        return _one_constraint(indptr, indices, weights, parts, objective, seed)
    return _call(library, internal, indptr, indices, weights, parts, objective, seed)


def _call(
    library: ctypes.CDLL,
    internal: ModuleType,
    indptr: Array,
    indices: Array,
    weights: Array,
    parts: int,
    objective: str,
    seed: int,
) -> Array:
    integer = np.dtype(f"int{internal._idx_type_width()}")
    options = np.empty(NUM_OPTIONS, dtype=integer)
    library.METIS_SetDefaultOptions(_pointer(options))
    key = internal.OptionKey
    options[int(key.OBJTYPE)] = OBJECTIVES[objective]
    options[int(key.UFACTOR)] = TOLERANCE
    options[int(key.SEED)] = seed % (1 << 31)
    num_vertices = np.array(len(indptr) - 1, dtype=integer)
    num_constraints = np.array(weights.shape[1], dtype=integer)
    num_parts = np.array(parts, dtype=integer)
    cut = np.zeros(1, dtype=integer)
    part = np.zeros(len(indptr) - 1, dtype=integer)
    indptr, indices = (np.ascontiguousarray(array, dtype=integer) for array in (indptr, indices))
    weights = np.ascontiguousarray(weights, dtype=integer)
    status = library.METIS_PartGraphKway(
        _pointer(num_vertices),
        _pointer(num_constraints),
        _pointer(indptr),
        _pointer(indices),
        _pointer(weights),
        None,  # sizes of vertices, for the volume: all 1
        None,  # weights of edges
        _pointer(num_parts),
        None,  # parts of equal size
        None,  # one tolerance for all constraints: the option above
        _pointer(options),
        _pointer(cut),
        _pointer(part),
    )
    if status != OK:
        raise MetisError(f"METIS gave up with status {status}; try another --seed or --method random")
    return part.astype(np.int32)


def _one_constraint(indptr: Array, indices: Array, weights: Array, parts: int, objective: str, seed: int) -> Array:
    import pymetis

    warnings.warn(
        "this pymetis hides METIS's C interface: balance is of one weighted sum, not of each kind", stacklevel=4
    )
    shares = weights / weights.sum(axis=0)
    total = np.rint(shares.sum(axis=1) * len(weights) * 100).astype(np.int64) + 1
    options = pymetis.Options(ufactor=TOLERANCE, seed=seed % (1 << 31))
    options._set(int(pymetis.OptionKey.OBJTYPE), OBJECTIVES[objective])
    # Recursive bisection, the default for few parts, ignores the volume.
    adjacency = pymetis.CSRAdjacency(indptr, indices)
    partition = pymetis.part_graph(parts, adjacency, vweights=total, recursive=False, options=options)
    return np.asarray(partition.vertex_part, dtype=np.int32)


def _pointer(array: Array) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)
