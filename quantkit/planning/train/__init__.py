"""What a training run takes of each GPU."""
