"""thinwire: distributed training that waits less for the network."""

# Written here and read by the build: looking it up in the installed package's metadata takes longer than `--help`.
__version__ = "0.1.0"
