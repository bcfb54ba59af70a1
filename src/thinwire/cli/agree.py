"""What only the first rank of a torchrun job can know, as only its machine has the run's files: it tells the others."""

import json
from typing import Any

from thinwire import launch
from thinwire.launch import Member


def agreed(value: Any) -> Any:
    """The first rank's; without torchrun, this process's own."""
    return value if launch.seat_from_torchrun() is None else launch.run(_told, value, workers=1)[0]


def _told(member: Member, value: Any) -> Any:
    if member.rank == 0:
        member.store.set("agreed", json.dumps(value))
    return json.loads(member.store.get("agreed"))
