"""What every technique that trains on graphs shares: models, runs with events and checkpoints, losses and scores."""
