"""Ranks as processes: started together and ended together, whatever happens to one of them or to the launcher.

torch.multiprocessing starts them and brings the first failure's traceback; added here are results, signals, and that no
rank outlives its launcher. They are forked from a server that has imported torch and the work's module once: to import
both anew takes each rank some seconds. The server itself does nothing, so there is no thread or device to fork.
"""

import ctypes
import fcntl
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch.multiprocessing as torch_mp

from thinwire.launch.failures import RankFailed
from thinwire.launch.meeting import name_of
from thinwire.launch.membership import joined
from thinwire.launch.namespaces import enter_namespace
from thinwire.launch.rank_spec import RankSpec
from thinwire.scratch import sigterm_as_exit

# How long the others have to end by themselves once a rank has failed; then they get SIGTERM.
GRACE_S = 8.0
# How long they have after that; then they are killed.
END_S = 3.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class _Failure:
    """What a rank raised. Where another died without a word, this says what was going on."""

    why: str


class _Context(Protocol):
    processes: list[Any]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool: ...


def run_ranks(work: Callable[..., Any], arguments: Sequence[Any], rank_specs: Sequence[RankSpec]) -> list[Any]:
    """`work(*arguments)` in a process for each rank spec; what they return, in the order of ranks.

    `work` must be importable by its module's name. The first failure ends all ranks and is raised as RankFailed.
    """
    pipes = [torch_mp.Pipe() for _ in rank_specs]
    results: dict[int, Any] = {}
    with _quiet_torch(), sigterm_as_exit():
        # Or torch warns at every connection of a host without a name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        context: _Context = torch_mp.start_processes(
            _rank_main,
            args=(dict(os.environ), work, tuple(arguments), tuple(rank_specs), tuple(sender for _, sender in pipes)),
            nprocs=len(rank_specs),
            join=False,
            start_method=_start_method(work),
        )
        try:
            for _, sender in pipes:
                sender.close()
            while not context.join(timeout=0.05, grace_period=GRACE_S):
                _collect(pipes, results)
            _collect(pipes, results)
        except torch_mp.ProcessRaisedException as error:
            raise RankFailed(error.error_index, len(rank_specs), _traceback_only(error.msg)) from None
        except torch_mp.ProcessExitedException as error:
            how = error.signal_name or f"exit code {error.exit_code}"
            _collect(pipes, results)
            reports = [f"; rank {rank} failed: {r.why}" for rank, r in results.items() if isinstance(r, _Failure)]
            raise RankFailed(
                error.error_index, len(rank_specs), f"its process ended by {how}{reports[0] if reports else ''}"
            ) from None
        finally:
            _end(context)
    return [results[rank] for rank in range(len(rank_specs))]


def _start_method(work: Callable[..., Any]) -> str:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    more = getattr(sys.modules[work.__module__], "PRELOAD", ())  # modules that the work imports only when it runs
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__, work.__module__, *more])
    return "forkserver"


def _rank_main(
    index: int,
    environment: dict[str, str],
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    rank_specs: tuple[RankSpec, ...],
    senders: tuple[Connection, ...],
) -> None:
    _die_with_launcher()
    # The fork server has the environment of the first launch; this launch's may differ.
    os.environ.clear()
    os.environ.update(environment)
    # Ctrl-C reaches every process of the terminal. Only the launcher answers it: it sends SIGTERM to the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other, sender in enumerate(senders):
        if other != index:
            sender.close()
    rank_spec = rank_specs[index]
    if rank_spec.namespace is not None:
        enter_namespace(rank_spec.namespace)
    if rank_spec.cores is not None:
        os.sched_setaffinity(0, rank_spec.cores)
    try:
        with joined(rank_spec, name_of(work)):
            result = work(*arguments)
    except Exception as error:
        with suppress(OSError):
            senders[index].send(_Failure(str(error)))
        raise
    senders[index].send(result)
    with suppress(EOFError, OSError):
        senders[index].recv()  # the launcher fetches tensors from this process, which has to stay until then
    # Without the interpreter's clean-up: a thread of gloo's that returns from C++ meanwhile would abort the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with_launcher() -> None:
    """Have the kernel kill this process when the launcher dies: gloo, which waits in C++, heeds no gentler signal.

    It holds the other end of a pipe that we have; our parent, whose death counts too, is the server.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(launcher.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(launcher.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(launcher.sentinel, fcntl.F_SETFL, fcntl.fcntl(launcher.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if not launcher.is_alive():  # it died before the request was in place
        os._exit(1)


def _collect(pipes: Sequence[tuple[Connection, Connection]], results: dict[int, Any]) -> None:
    for rank, (receiver, _) in enumerate(pipes):
        if rank not in results and receiver.poll():
            with suppress(EOFError, OSError):  # the rank ended without a result, and join says why
                results[rank] = receiver.recv()
                receiver.send(None)


def _end(context: _Context) -> None:
    for process in context.processes:
        if process.is_alive():
            process.terminate()
    for process in context.processes:
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()


def _traceback_only(message: str) -> str:
    return message.split("terminated with the following error:\n", 1)[-1].strip()


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Silence torch's log line for each process that it ends: the error says it once."""
    logger = logging.getLogger("torch.multiprocessing.spawn")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
