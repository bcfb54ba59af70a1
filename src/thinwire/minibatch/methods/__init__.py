"""Methods of training on sampled batches, one per file."""

from thinwire.minibatch.methods.salient import POLICIES, Salient

__all__ = ["METHODS", "POLICIES", "Salient"]

METHODS: dict[str, type[Salient]] = {
    "salient": Salient,
}
