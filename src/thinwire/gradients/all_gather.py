"""Groups whose payloads go from each rank to all: (n - 1) c bytes a rank, and each rank adds up all payloads."""

from torch import Tensor

from thinwire.gradients.coded import Coded
from thinwire.links import Transfer


class AllGather(Coded):
    """One encoding; every rank decodes all payloads."""

    _payloads: Transfer[list[Tensor]]
    _is_summed = False

    def wait(self) -> None:
        self._payloads.wait()

    @property
    def transfer_s(self) -> float:
        return self._payloads.seconds

    @property
    def sent_bytes(self) -> float:
        return sum(self._nbytes) * (self._parameters.door.world_size - 1)

    def _send(self, payload: Tensor) -> None:
        door = self._parameters.door
        sizes = [payload.nbytes] * door.world_size
        self._payloads = door.all_gather(payload, sizes, channel=self._parameters.channel)

    def _receive(self, total: Tensor) -> bool:
        return self._add_up(self._codecs[0], self._payloads.wait(), total)
