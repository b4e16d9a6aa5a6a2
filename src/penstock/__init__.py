"""Queues and streams that live in a folder or a bucket and feed Spark exactly once."""
