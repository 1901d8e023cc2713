"""What brings a query back: diagnosis, marker files, rewinds of Spark's logs, copies of state."""
