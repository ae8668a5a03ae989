"""The archive of the history: each day as Parquet files, written before it is dropped, and read when it is restored."""
