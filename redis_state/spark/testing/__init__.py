"""What `redis_state.testing` hands on: processors driven without Spark."""
