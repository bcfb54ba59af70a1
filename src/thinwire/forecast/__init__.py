"""What each method would take here, before training: a short rehearsal on ranks of this machine, replayed on the wires
that there will be.

    rehearse   a few epochs of every method, each step and transfer noted (script)
    replay     the same steps with the transfers of another network. Pure
    forecast   a row for each method, which one to take, and how that changes with the rate. Pure
"""

from thinwire.forecast.forecast import Forecast, Row, forecast
from thinwire.forecast.rehearse import METHODS, Rehearsal, rehearse
from thinwire.forecast.wires import even

__all__ = ["METHODS", "Forecast", "Rehearsal", "Row", "even", "forecast", "rehearse"]
