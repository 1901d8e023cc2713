"""Types of Spark, and its keys and rows as bytes: unsafe rows, ordered keys, Avro, hashes."""
