"""Shared by all techniques that train on graphs: models, runs with events and checkpoints, losses and scores."""
