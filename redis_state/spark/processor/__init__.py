"""What runs a `StatefulProcessor` beside its state in the Python worker."""
