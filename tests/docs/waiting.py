"""Pages that show what is not there yet: `thinwire.init`, methods as words. Their tests must fail until it is, and then
this list must go: it is strict.
"""

PYTHON = {
    "README.md",
    "docs/crossmesh.md",
    "docs/fullgraph.md",
    "docs/gradients.md",
    "docs/links.md",
    "docs/minibatch.md",
    "docs/pipelines.md",
}
COMMANDS = {"README.md", "docs/cluster.md", "docs/fullgraph.md", "docs/minibatch.md", "docs/plan.md", "docs/report.md"}
REFERENCE = {"fullgraph", "gradients", "crossmesh", "graphs", "minibatch", "pipelines"}  # a function hides its module
