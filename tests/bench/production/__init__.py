"""`python -m tests.bench.production`: state stores where checkpoints are objects far away."""
